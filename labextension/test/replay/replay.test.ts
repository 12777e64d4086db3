import { describe, expect, it } from 'vitest';

import type { IJobEvent } from '../../src/api/types';
import { OutputList } from '../../src/replay/outputs';
import { Replay } from '../../src/replay/replay';
import { job } from '../make';

type Content = Record<string, unknown>;

class Stage {
  readonly outputs = new OutputList();
  readonly replay: Replay;
  private _seq = 0;

  constructor(options: { maxChars?: number; statusLine?: boolean; chunkChars?: number } = {}) {
    this.replay = new Replay(this.outputs, { now: () => 112.3, ...options });
  }

  get list(): unknown[] {
    while (this.replay.flush()) {
      // until all of it is written
    }
    return this.outputs.list;
  }

  get text(): string {
    return (this.list as { text?: string }[]).map(output => output.text ?? '').join('');
  }

  send(msg_type: string, content: Content, kind = 'kernel'): void {
    const event: IJobEvent = { seq: this._seq++, kind, msg_type, content };
    this.replay.onEvents([event]);
  }

  print(text: string, name = 'stdout'): void {
    this.send('stream', { name, text });
  }

  display(data: Content, id?: string, type = 'display_data'): void {
    this.send(type, { data, metadata: {}, transient: id === undefined ? {} : { display_id: id } });
  }

  reply(content: Content): void {
    this.send('reply', content, 'reply');
  }

  fails(ename = 'ValueError', evalue = 'bad'): void {
    this.send('error', { ename, evalue, traceback: [`remote ${ename}`] });
  }

  end(
    state: 'succeeded' | 'failed' | 'cancelled' = 'succeeded',
    outcome: Content = {},
    kind = 'cell'
  ): void {
    const times = { started_at: 100, ended_at: 112.3 };
    this.replay.onJob(job(state, { ...times, kind, outcome: { state, ...outcome } }));
  }
}

const ERROR = {
  output_type: 'error',
  ename: 'ValueError',
  evalue: 'bad',
  traceback: ['remote ValueError']
};
const plain = (text: string) => ({
  output_type: 'display_data',
  data: { 'text/plain': text },
  metadata: {}
});
const stream = (text: string, name = 'stdout') => ({ output_type: 'stream', name, text });

describe('outputs', () => {
  it('come in order, the text of one stream as one', () => {
    const stage = new Stage();
    stage.print('one\n');
    stage.print('two\n');
    stage.print('oh\n', 'stderr');
    stage.display({ 'text/plain': 'x' });
    stage.print('three\n');
    stage.send('execute_result', {
      data: { 'text/plain': '42' },
      metadata: {},
      execution_count: 7
    });
    stage.end();
    expect(stage.list).toEqual([
      stream('one\ntwo\n'),
      stream('oh\n', 'stderr'),
      plain('x'),
      stream('three\n'),
      { ...plain('42'), output_type: 'execute_result', execution_count: 7 }
    ]);
    expect(stage.replay.finished).toBe(true);
  });

  it('are the same whenever they are written', () => {
    const often = new Stage();
    const once = new Stage();
    for (const stage of [often, once]) {
      for (let n = 0; n < 50; n++) {
        stage.print(`\r${n}%`, n % 10 ? 'stdout' : 'stderr');
        stage.display(
          { 'text/plain': `d${n}` },
          `id${n % 3}`,
          n % 4 ? 'update_display_data' : 'display_data'
        );
        if (stage === often) {
          stage.replay.flush();
        }
      }
      stage.end();
    }
    expect(often.list).toEqual(once.list);
  });

  it('are updated in place, all displays of an id', () => {
    const stage = new Stage();
    stage.display({ 'text/plain': '1' }, 'bar');
    stage.display({ 'text/plain': '1' }, 'bar');
    expect(stage.list).toHaveLength(2);
    stage.display({ 'text/plain': '2' }, 'bar', 'update_display_data');
    stage.display({ 'text/plain': 'nobody' }, 'other', 'update_display_data');
    expect(stage.list).toEqual([plain('2'), plain('2')]);
  });

  it('are cleared at once, or with the next', () => {
    const stage = new Stage();
    stage.print('old\n');
    expect(stage.list).toHaveLength(1);
    stage.send('clear_output', { wait: true });
    expect(stage.list).toEqual([stream('old\n')]);
    stage.print('new\n');
    expect(stage.list).toEqual([stream('new\n')]);
    stage.send('clear_output', { wait: false });
    expect(stage.list).toEqual([]);
  });

  it('of a widget are its text, as its kernel is elsewhere', () => {
    const stage = new Stage();
    const view = { 'application/vnd.jupyter.widget-view+json': { model_id: 'x' } };
    stage.display({ ...view, 'text/plain': 'IntSlider(value=0)' });
    expect(stage.list).toEqual([plain('IntSlider(value=0)')]);
  });

  it('of a page that the kernel wants shown come too', () => {
    const stage = new Stage();
    stage.reply({ status: 'ok', payload: [{ source: 'page', data: { 'text/plain': 'help' } }] });
    expect(stage.list).toEqual([plain('help')]);
  });

  it('begin anew with another attempt', () => {
    const stage = new Stage();
    stage.print('first try\n');
    expect(stage.list).toHaveLength(1);
    stage.replay.onRestart();
    stage.print('second try\n');
    stage.end();
    expect(stage.list).toEqual([stream('second try\n')]);
  });

  it('say where the stream was cut off', () => {
    const stage = new Stage();
    stage.send('mark', { mark: 'truncated', why: 'worker given up' }, 'mark');
    expect(stage.list).toEqual([stream('\n[output truncated here: worker given up]\n', 'stderr')]);
  });
});

describe('errors', () => {
  it('that end the cell come last', () => {
    const stage = new Stage();
    stage.print('before\n');
    stage.fails();
    stage.reply({ status: 'error', ename: 'ValueError', evalue: 'bad' });
    stage.end('failed', { error: 'ValueError: bad' });
    expect(stage.list).toEqual([stream('before\n'), ERROR]);
  });

  it("that are not the cell's end are shown in place", () => {
    const stage = new Stage();
    stage.fails();
    stage.print('after %tb\n');
    stage.reply({ status: 'ok' });
    stage.end();
    expect(stage.list).toEqual([ERROR, stream('after %tb\n')]);
  });

  it('are shown where nothing follows and the cell went well all the same', () => {
    const stage = new Stage();
    stage.fails();
    stage.reply({ status: 'ok' });
    stage.end();
    expect(stage.list).toEqual([ERROR]);
  });

  it('are not shown twice when the cell ends with one that was shown', () => {
    const stage = new Stage();
    stage.fails();
    stage.print('finally\n');
    stage.reply({ status: 'error', ename: 'ValueError', evalue: 'bad' });
    stage.end('failed', { error: 'ValueError: bad' });
    expect(stage.list).toEqual([ERROR, stream('finally\n')]);
  });

  it('of usage are said by IPython itself', () => {
    const stage = new Stage();
    stage.print('UsageError: no such magic\n', 'stderr');
    stage.reply({ status: 'error', ename: 'UsageError', evalue: 'no such magic' });
    stage.end('failed', { error: 'UsageError: no such magic' });
    expect(stage.list).toEqual([stream('UsageError: no such magic\n', 'stderr')]);
  });

  it('of a command are its exit code: its own words stand there already', () => {
    const stage = new Stage();
    stage.end('failed', { exit_code: 3, tail: 'oh no' }, 'command');
    expect(stage.list).toMatchObject([
      { traceback: ['gpulayer: job k3f9 failed on box: exit code 3'] }
    ]);
  });

  it('around the program say what happened, and its last lines', () => {
    const stage = new Stage();
    stage.end('failed', { problem: 'out of memory', tail: 'Killed\nby kernel\n' });
    expect(stage.list).toEqual([
      {
        output_type: 'error',
        ename: 'JobError',
        evalue: 'job k3f9 failed on box: out of memory',
        traceback: [
          'gpulayer: job k3f9 failed on box: out of memory',
          'the last lines of its process:',
          'Killed',
          'by kernel'
        ]
      }
    ]);
  });

  it('of a person who cancelled say so', () => {
    const stage = new Stage();
    stage.end('cancelled');
    expect(stage.list).toMatchObject([{ ename: 'JobCancelled', evalue: 'job k3f9 was cancelled' }]);
  });
});

describe('the status line', () => {
  it('stands first, is updated, and survives what clears the rest', () => {
    const stage = new Stage({ statusLine: true });
    stage.replay.onJob(job('running', { started_at: 100 }));
    stage.print('text\n');
    expect(stage.list).toEqual([plain('● running on box · 12.3 s · job k3f9'), stream('text\n')]);
    stage.send('clear_output', { wait: false });
    stage.print('more\n');
    stage.end();
    expect(stage.list).toEqual([plain('✓ done on box in 12.3 s · job k3f9'), stream('more\n')]);
  });
});

describe('too much text', () => {
  const line = (n: number) => `${String(n).padStart(9, '0')}\n`;

  it('shows its head and its tail, and between them how much is left out', () => {
    const stage = new Stage({ maxChars: 1000 });
    for (let n = 0; n < 1000; n++) {
      stage.print(line(n));
    }
    stage.end();
    const list = stage.list as [{ text: string }, unknown, { text: string }];
    expect(list).toHaveLength(3);
    expect(list[0].text).toBe(Array.from({ length: 50 }, (_, n) => line(n)).join(''));
    expect(list[1]).toEqual(
      plain(
        '… 9 kB left out here: the whole is in job k3f9 (%gpulayer attach k3f9 --max-output 1GB) …'
      )
    );
    expect(list[2].text).toBe(Array.from({ length: 50 }, (_, n) => line(950 + n)).join(''));
  });

  it('shows the newest of it meanwhile', () => {
    const stage = new Stage({ maxChars: 1000 });
    for (let n = 0; n < 1000; n++) {
      stage.print(line(n));
    }
    stage.replay.preview();
    expect(stage.text.endsWith(line(999))).toBe(true);
    stage.print(line(1000), 'stderr');
    stage.replay.preview();
    expect(stage.text.endsWith(line(1000))).toBe(true);
    stage.end();
    const names = (stage.list as { name?: string }[]).map(output => output.name);
    expect(names).toEqual(['stdout', undefined, 'stdout', 'stderr']);
    expect(stage.text.split(line(999))).toHaveLength(2);
  });

  it('is whole if in the end it was not too much', () => {
    const stage = new Stage({ maxChars: 1000, statusLine: true });
    const all = Array.from({ length: 80 }, (_, n) => line(n));
    all.forEach(each => stage.print(each));
    stage.replay.preview();
    expect(stage.list).toHaveLength(4);
    stage.end();
    expect(stage.list).toHaveLength(2);
    expect(stage.text).toBe(all.join(''));
  });

  it('goes on in another output at the end of a line, if it is to', () => {
    const stage = new Stage({ maxChars: 1000, chunkChars: 100 });
    const all = Array.from({ length: 80 }, (_, n) => line(n)).join('');
    stage.print(all.slice(0, 305));
    stage.print(all.slice(305));
    expect(stage.list.length).toBeGreaterThan(3);
    stage.end();
    expect(stage.text).toBe(all);
    const texts = (stage.list as { text: string }[]).map(output => output.text);
    expect(texts.every(text => text.endsWith('\n') && text.length <= 200)).toBe(true);
  });

  it('takes no room for what a progress bar overwrites', () => {
    const stage = new Stage({ maxChars: 1000 });
    for (let n = 0; n < 10_000; n++) {
      stage.print(`\rstep ${n}`);
    }
    stage.end();
    expect(stage.list).toEqual([stream('step 9999')]);
  });

  it('holds no more than it shows while 200 MB pass', () => {
    const stage = new Stage();
    const block = line(1).repeat(25_000);
    for (let n = 0; n < 800; n++) {
      stage.print(block);
    }
    stage.end();
    expect(stage.text.length).toBe(200_000);
  });
});
