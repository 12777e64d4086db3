import { describe, expect, it, test } from 'vitest';

import type { ICellFacts } from '../../src/attach/offer';
import { newestByCell, offerOf, samePath } from '../../src/attach/offer';
import { job } from '../make';

const cell = (facts: Partial<ICellFacts> = {}): ICellFacts => ({
  executing: false,
  executedAt: null,
  displays: [],
  empty: true,
  savedAt: 500,
  ...facts
});
const RUNNING = job('running', { submitted_at: 1000, started_at: 1000 });
const DONE = job('succeeded', { submitted_at: 1000, started_at: 1000, ended_at: 1010 });

describe('a job that lives', () => {
  it('is offered after the page was loaded anew', () => {
    expect(offerOf(RUNNING, cell())).toBe('attach');
    expect(offerOf(RUNNING, cell({ empty: false, displays: ['● running …'] }))).toBe('attach');
  });

  it('is not offered while this page executes the cell, nor after it did', () => {
    expect(offerOf(RUNNING, cell({ executing: true, executedAt: 999 }))).toBeNull();
    expect(offerOf(RUNNING, cell({ executedAt: 999 }))).toBeNull();
    expect(offerOf(RUNNING, cell({ executedAt: 1001.5 }))).toBeNull();
  });

  it('is offered where this page executed the cell for a later job only', () => {
    expect(offerOf(RUNNING, cell({ executedAt: 2000 }))).toBe('attach');
  });
});

describe('a job that ended', () => {
  it('is offered if the cell has nothing of it and was saved before', () => {
    expect(offerOf(DONE, cell())).toBe('show');
    expect(offerOf(DONE, cell({ savedAt: null }))).toBe('show');
  });

  it('is offered if the cell was left while it ran', () => {
    const displays = ['● running on box · 3.0 s · job k3f9'];
    expect(offerOf(DONE, cell({ empty: false, displays, savedAt: 2000 }))).toBe('show');
  });

  it('is not offered if its output is there, or somebody emptied the cell and saved', () => {
    const displays = ['✓ done on box in 10.0 s · job k3f9'];
    expect(offerOf(DONE, cell({ empty: false, displays }))).toBeNull();
    expect(offerOf(DONE, cell({ savedAt: 2000 }))).toBeNull();
    expect(offerOf(DONE, cell({ executedAt: 999 }))).toBeNull();
  });
});

it('of the jobs of a cell the newest counts', () => {
  const of = (id: string, cell_id: string, submitted_at: number, notebook = '/srv/a.ipynb') =>
    job('running', { id, cell_id, submitted_at, notebook });
  const jobs = [
    of('old', 'c1', 1),
    of('new', 'c1', 2),
    of('other', 'c2', 1),
    of('x', 'c3', 1, '/srv/b.ipynb'),
    of('none', '', 3)
  ];
  const found = newestByCell(jobs, path => path === '/srv/a.ipynb');
  expect([...found].map(([id, each]) => [id, each.id])).toEqual([
    ['c1', 'new'],
    ['c2', 'other']
  ]);
});

test.each([
  ['/users/ana/work/a.ipynb', '/users/ana/work', 'a.ipynb', true],
  ['/users/ana/work/sub/a.ipynb', '/users/ana/work/', 'sub/a.ipynb', true],
  ['/users/ana/work/sub/a.ipynb', '/users/ana/work', 'a.ipynb', false],
  ['/users/ana/work/a.ipynb', '~/work', 'a.ipynb', true],
  ['/users/ana/play/a.ipynb', '~/work', 'a.ipynb', false],
  ['/users/ana/a.ipynb', '~', 'a.ipynb', true],
  ['/srv/a.ipynb', '', 'a.ipynb', true],
  ['/srv/ba.ipynb', '', 'a.ipynb', false],
  ['/srv/a.ipynb', '', 'RTC:a.ipynb', true],
  ['C:\\work\\sub\\a.ipynb', 'C:\\work', 'sub/a.ipynb', true]
])('%s under %s is %s: %s', (absolute, root, path, same) => {
  expect(samePath(absolute, root, path)).toBe(same);
});
