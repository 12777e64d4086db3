import type { IDevice, IJob, State, WireJob } from '../src/api/types';
import { toJob } from '../src/api/types';

/** Two graphics cards. */
export const GPUS: IDevice[] = [1, 2].map(index => ({
  uuid: `u${index}`,
  kind: 'cuda',
  index,
  name: 'RTX 4090',
  vram_bytes: 24e9,
  unified: false,
  sick: ''
}));

/** A job as `tests/unit/notebook/test_words.py` makes it. */
export function job(state: State, facts: Partial<WireJob> = {}): IJob {
  return toJob({ id: 'k3f9', state, worker: 'box', ...facts });
}
