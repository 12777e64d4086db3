import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { Watch } from '../../src/api/watch';
import { Sockets } from '../fake';

let sockets: Sockets;
let watch: Watch;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = new Sockets();
  watch = new Watch(sockets.open);
});

afterEach(() => {
  watch.dispose();
  vi.useRealTimers();
});

const worker = (id: string, facts = {}) => ({ id, name: `box-${id}`, ...facts });
const job = (id: string, submitted_at: number, state = 'running') => ({ id, state, submitted_at });
const fleet = (facts = {}) => ({ type: 'fleet', version: '1', epoch: 1, now: 1000, ...facts });
const ids = (items: readonly { id: string }[]) => items.map(item => item.id);

it('is open while somebody looks', () => {
  expect(sockets.all).toHaveLength(0);
  const one = watch.look();
  const other = watch.look();
  expect(sockets.all).toHaveLength(1);
  one.dispose();
  one.dispose();
  expect(sockets.last.closed).toBe(false);
  other.dispose();
  expect(sockets.last.closed).toBe(true);
  expect(watch.link).toBe('off');
});

it('takes the fleet, then what changes, newest job first', () => {
  watch.look();
  sockets.last.say(
    fleet({
      workers: [worker('a'), worker('b')],
      jobs: [job('j1', 1)],
      sessions: [{ id: 's', name: 's', worker: 'a' }]
    })
  );
  expect(watch.link).toBe('open');
  expect(watch.fleet.jobs[0]).toMatchObject({ id: 'j1', name: '', devices: [], outcome: null });
  const before = watch.fleet;
  sockets.last.say({
    type: 'changes',
    now: 1001,
    workers: [worker('b', { connected: true }), worker('c')],
    workers_gone: ['a'],
    jobs: [job('j2', 2), job('j1', 1, 'succeeded')],
    sessions_gone: ['s']
  });
  expect(ids(watch.fleet.workers)).toEqual(['b', 'c']);
  expect(watch.fleet.workers[0]?.connected).toBe(true);
  expect(ids(watch.fleet.jobs)).toEqual(['j2', 'j1']);
  expect(watch.fleet.jobs[1]?.state).toBe('succeeded');
  expect(watch.fleet.sessions).toEqual([]);
  expect(watch.fleet).not.toBe(before);
  expect(ids(before.workers)).toEqual(['a', 'b']);
});

it('takes how machines fare by itself, and that it is not known any more', () => {
  watch.look();
  sockets.last.say(fleet({ workers: [worker('a'), worker('b')] }));
  expect(watch.fleet.workers[0]?.sample).toBeNull();
  sockets.last.say({ type: 'changes', now: 1002, samples: { a: { cpu: 0.5 }, gone: {} } });
  const [a, b] = watch.fleet.workers;
  expect(a).toMatchObject({ name: 'box-a', sampled_at: 1002, sample: { cpu: 0.5, devices: [] } });
  expect(b?.sample).toBeNull();
  sockets.last.say({ type: 'changes', now: 1003, samples: { a: null } });
  expect(watch.fleet.workers[0]?.sample).toBeNull();
});

it('comes back by itself, ever more patiently, and takes the new fleet for the whole truth', () => {
  let lost = 0;
  watch.lost.connect(() => (lost += 1));
  watch.look();
  sockets.last.say(fleet({ workers: [worker('a')] }));
  sockets.last.drop();
  expect(watch.link).toBe('lost');
  expect(ids(watch.fleet.workers)).toEqual(['a']);
  for (let n = 0; n < 10; n++) {
    vi.advanceTimersToNextTimer();
    sockets.last.drop();
  }
  expect(sockets.all).toHaveLength(11);
  expect(lost).toBe(11);
  const before = Date.now();
  vi.advanceTimersToNextTimer();
  expect(Date.now() - before).toBeGreaterThanOrEqual(5000);
  expect(Date.now() - before).toBeLessThanOrEqual(10_000);
  sockets.last.say(fleet({ workers: [worker('b')] }));
  expect(ids(watch.fleet.workers)).toEqual(['b']);
  expect(watch.link).toBe('open');
});

it('does not come back once nobody looks', () => {
  const looking = watch.look();
  sockets.last.drop();
  looking.dispose();
  vi.runAllTimers();
  expect(sockets.all).toHaveLength(1);
});

it('connects anew when asked to', () => {
  watch.refresh();
  expect(sockets.all).toHaveLength(0);
  watch.look();
  const first = sockets.last;
  watch.refresh();
  expect(first.closed).toBe(true);
  expect(sockets.all).toHaveLength(2);
});

it("tells the control plane's time, whatever this computer's clock says", () => {
  watch.look();
  sockets.last.say(fleet({ now: 5_000_000 }));
  vi.advanceTimersByTime(2000);
  expect(watch.now()).toBeCloseTo(5_000_002);
});

it('ignores what it does not know', () => {
  watch.look();
  sockets.last.say(fleet({ workers: [worker('a')] }));
  sockets.last.say({ type: 'weather', now: 1 });
  expect(ids(watch.fleet.workers)).toEqual(['a']);
});

it('lets old jobs go, never a live one', () => {
  watch.look();
  const jobs = Array.from({ length: 500 }, (_, n) => job(`e${n}`, n, 'succeeded'));
  sockets.last.say(fleet({ jobs: [...jobs, job('live', -1)] }));
  expect(watch.fleet.jobs).toHaveLength(201);
  expect(ids(watch.fleet.jobs)).toContain('live');
  expect(ids(watch.fleet.jobs)).toContain('e499');
});

it('is settled once the fleet is here, or known not to be', async () => {
  watch.look();
  const settled = watch.settled();
  sockets.last.drop();
  await settled;
  expect(watch.link).toBe('lost');
});
