import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { JobEvents } from '../../src/api/events';
import type { IJob, IJobEvent } from '../../src/api/types';
import { Sockets } from '../fake';

let sockets: Sockets;
let heard: string[];
let events: JobEvents;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = new Sockets();
  heard = [];
  events = new JobEvents(sockets.open, {
    onJob: (job: IJob) => heard.push(job.state),
    onRestart: () => heard.push('restart'),
    onEvents: (these: readonly IJobEvent[]) => heard.push(...these.map(event => String(event.seq)))
  });
  events.start();
});

afterEach(() => {
  events.dispose();
  vi.useRealTimers();
});

const job = (state: string) => ({ type: 'job', job: { id: 'k3f9', state } });
const attempt = (name: string) => ({ type: 'attempt', attempt: name });
const some = (...seqs: number[]) => ({
  type: 'events',
  events: seqs.map(seq => ({ seq, kind: 'kernel', msg_type: 'stream', content: {} }))
});

it('passes on what comes, in order, until the job is over', () => {
  expect(sockets.last.query).toEqual({});
  sockets.last.say(job('running'));
  sockets.last.say(attempt('a-1'));
  sockets.last.say(some(0, 3));
  sockets.last.say(some(4));
  sockets.last.say(job('succeeded'));
  sockets.last.drop(1000);
  expect(heard).toEqual(['running', '0', '3', '4', 'succeeded']);
  expect(events.state).toBe('over');
  vi.runAllTimers();
  expect(sockets.all).toHaveLength(1);
});

it('goes on where it was cut off: nothing missing, nothing doubled', () => {
  sockets.last.say(attempt('a-1'));
  sockets.last.say(some(0, 3));
  sockets.last.drop();
  expect(events.state).toBe('lost');
  vi.advanceTimersToNextTimer();
  expect(sockets.last.query).toEqual({ attempt: 'a-1', after: '3' });
  sockets.last.say(attempt('a-1'));
  sockets.last.say(some(3, 4)); // one that is known does no harm
  expect(events.state).toBe('open');
  expect(heard).toEqual(['0', '3', '4']);
});

it('begins anew with another attempt, also across a lost connection', () => {
  sockets.last.say(attempt('a-1'));
  sockets.last.say(some(0, 1, 2));
  sockets.last.say(attempt('a-2'));
  sockets.last.say(some(0));
  sockets.last.drop();
  vi.advanceTimersToNextTimer();
  sockets.last.say(attempt('a-3'));
  sockets.last.say(some(0, 1));
  expect(heard).toEqual(['0', '1', '2', 'restart', '0', 'restart', '0', '1']);
});

it('says that there is no such job, and does not ask again', () => {
  sockets.last.drop(4404);
  expect(events.state).toBe('unknown');
  vi.runAllTimers();
  expect(sockets.all).toHaveLength(1);
});

it('is silent once it is disposed', () => {
  const socket = sockets.last;
  events.dispose();
  expect(socket.closed).toBe(true);
  socket.say(some(0));
  socket.drop();
  vi.runAllTimers();
  expect(sockets.all).toHaveLength(1);
  expect(heard).toEqual([]);
});
