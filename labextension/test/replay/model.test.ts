// @vitest-environment jsdom
import type { IStream } from '@jupyterlab/nbformat';
import { OutputAreaModel } from '@jupyterlab/outputarea/lib/model';
import { expect, it } from 'vitest';

import { ModelOutputs } from '../../src/replay/model';
import { Replay } from '../../src/replay/replay';
import { job } from '../make';

function follow(model: OutputAreaModel): { replay: Replay; outputs: ModelOutputs } {
  const outputs = new ModelOutputs(model);
  return { outputs, replay: new Replay(outputs, { now: () => 0, statusLine: true }) };
}

const printed = (text: string, seq = 0) => [
  { seq, kind: 'kernel', msg_type: 'stream', content: { name: 'stdout', text } }
];

it("is what JupyterLab's own model makes of the same text", () => {
  const parts = ['one\n', '10%', '\r20%', '\r\n', 'ab\b\bX\n', '\b', 'long line\rab', '\nend\r'];
  for (let cut = 1; cut <= parts.length; cut++) {
    const theirs = new OutputAreaModel();
    const ours = new OutputAreaModel();
    const { replay } = follow(ours);
    replay.onJob(job('running'));
    for (const text of parts.slice(0, cut)) {
      theirs.add({ output_type: 'stream', name: 'stdout', text });
      replay.onEvents(printed(text));
      replay.flush();
    }
    expect((ours.toJSON()[1] as IStream).text).toBe((theirs.toJSON()[0] as IStream).text);
  }
});

it('takes the place of what stood in the cell, and sees who else writes there', () => {
  const model = new OutputAreaModel();
  model.add({ output_type: 'stream', name: 'stdout', text: 'old\n' });
  const { replay, outputs } = follow(model);
  expect(outputs.disturbed).toBe(false);
  replay.onEvents(printed('new\n'));
  replay.flush();
  expect(model.toJSON().slice(1)).toEqual([
    { output_type: 'stream', name: 'stdout', text: 'new\n' }
  ]);
  expect(outputs.disturbed).toBe(false);
  model.clear();
  expect(outputs.disturbed).toBe(true);
});

it('tells when what stood there is gone: only then may what comes be trusted', () => {
  const model = new OutputAreaModel();
  model.add({ output_type: 'stream', name: 'stdout', text: 'old\n' });
  const lengths: number[] = [];
  const replay = new Replay(new ModelOutputs(model, () => lengths.push(model.length)), {
    now: () => 0
  });
  replay.onEvents(printed('new\n'));
  replay.flush();
  expect(lengths).toEqual([0]);
});
