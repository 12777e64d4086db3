import { Token } from '@lumino/coreutils';

import type { Client } from './api/client';

/** Access to the control plane for this page: one connection that all parts share. */
export type IGpulayer = Pick<Client, keyof Client>;

/** The token under which other extensions find it. */
export const IGpulayer = new Token<IGpulayer>(
  'gpulayer:IGpulayer',
  'Access to the machines, jobs and sessions of GPUlayer.'
);

/** The commands; each is in the palette, too, where it makes sense without arguments. */
export const Commands = {
  openPanel: 'gpulayer:open-panel',
  addMachine: 'gpulayer:add-machine',
  openJob: 'gpulayer:open-job',
  cancelJob: 'gpulayer:cancel-job',
  releaseSession: 'gpulayer:release-session',
  refresh: 'gpulayer:refresh',
  attachCell: 'gpulayer:attach-cell',
  detachCell: 'gpulayer:detach-cell'
} as const;
