import { describe, expect, it, test } from 'vitest';

import {
  callsLine,
  callsOf,
  failure,
  ago,
  duration,
  isLiveStatus,
  ordinal,
  part,
  peak,
  percent,
  reasonLines,
  shortDuration,
  size,
  stateWord,
  statusLine,
  symbol
} from '../src/words';
import { GPUS, job } from './make';

// the cases of tests/unit/notebook/test_words.py: both sides say the same

test.each([
  [0, '0.0 s'],
  [4.24, '4.2 s'],
  [59.9, '59.9 s'],
  [59.97, '1 min 00 s'],
  [60, '1 min 00 s'],
  [192, '3 min 12 s'],
  [7500, '2 h 05 min'],
  [-3, '0.0 s']
])('a duration of %d seconds is %s', (seconds, text) => {
  expect(duration(seconds)).toBe(text);
});

test.each([
  [0, '0 B'],
  [999, '999 B'],
  [41_000, '41 kB'],
  [999_700, '1.0 MB'],
  [5_200_000, '5.2 MB'],
  [1.2e9, '1.2 GB'],
  [3e12, '3.0 TB']
])('%d bytes are %s', (count, text) => {
  expect(size(count)).toBe(text);
});

test.each([
  [1, '1st'],
  [2, '2nd'],
  [3, '3rd'],
  [4, '4th'],
  [11, '11th'],
  [112, '112th'],
  [21, '21st']
])('place %d is the %s', (place, text) => {
  expect(ordinal(place)).toBe(text);
});

test.each([
  [0, 'just now'],
  [9, 'just now'],
  [42, '42 s ago'],
  [130, '2 min ago'],
  [3700, '1 h ago'],
  [90_000, '1 day ago'],
  [3 * 86_400, '3 days ago']
])('%d seconds back is %s', (seconds, text) => {
  expect(ago(seconds)).toBe(text);
});

test.each([
  [4.9, '4 s'],
  [-1, '0 s'],
  [754, '12 min'],
  [7500, '2 h 05 min']
])('in a list %d seconds are %s', (seconds, text) => {
  expect(shortDuration(seconds)).toBe(text);
});

const REASONS = [
  { worker: 'box', code: 'slots', text: 'all 2 slots busy', temporary: true },
  { worker: 'mac', code: 'device_count', text: 'no cuda' }
];

test.each([
  [job('queued', { worker: null }), '○ waiting · job k3f9'],
  [
    job('queued', { worker: null, ahead: 1, reasons: REASONS }),
    '○ waiting · 2nd in line · box: all 2 slots busy · mac: no cuda · job k3f9'
  ],
  [
    job('queued', { worker: null, ahead: 1, requirements: { accelerator: 'cuda', devices: 2 } }),
    '○ waiting · 2nd in line for 2 cuda · job k3f9'
  ],
  [
    job('queued', {
      worker: null,
      reasons: [
        { worker: 'mac', code: 'worker_name', text: "is not 'box'" },
        { worker: 'box', code: 'slots', text: 'all 2 slots busy', temporary: true }
      ]
    }),
    '○ waiting · box: all 2 slots busy · job k3f9'
  ],
  [
    job('failed', { worker: null, submitted_at: 1, ended_at: 2 }),
    '✗ failed after 1.0 s · job k3f9'
  ],
  [job('assigned'), '◐ starting on box · job k3f9'],
  [
    job('assigned', { progress: 'fetching 3 files' }),
    '◐ starting on box · fetching 3 files · job k3f9'
  ],
  [job('running', { started_at: 100 }), '● running on box · 12.3 s · job k3f9'],
  [
    job('running', { started_at: 100, devices: GPUS.slice(0, 1) }),
    '● running on box · cuda:1 RTX 4090 · 12.3 s · job k3f9'
  ],
  [
    job('running', { started_at: 100, devices: GPUS, progress: 'output waits' }),
    '● running on box · cuda:1 RTX 4090 and 1 more · 12.3 s · output waits · job k3f9'
  ],
  [job('running', { cancelling: true }), '□ cancelling on box · job k3f9'],
  [job('queued', { worker: null, cancelling: true }), '□ cancelling · job k3f9'],
  [job('unreachable'), '◌ out of reach: box does not answer, the job may go on there · job k3f9'],
  [job('lost'), '↻ moved: box is lost, trying again · job k3f9'],
  [
    job('succeeded', {
      started_at: 100,
      ended_at: 114.1,
      outcome: { state: 'succeeded', peak_rss_bytes: 6_200_000_000 }
    }),
    '✓ done on box in 14.1 s · peak 6.2 GB · job k3f9'
  ],
  [
    job('succeeded', { started_at: 1, ended_at: 2, notes: ["session 's' had ended: fresh"] }),
    "✓ done on box in 1.0 s · session 's' had ended: fresh · job k3f9"
  ],
  [
    job('failed', {
      started_at: 100,
      ended_at: 103,
      outcome: { state: 'failed', problem: 'out of memory: …\nand more' }
    }),
    '✗ failed on box after 3.0 s · out of memory: … · job k3f9'
  ],
  [
    job('failed', {
      started_at: 1,
      ended_at: 2,
      outcome: { state: 'failed', error: 'ValueError: bad' }
    }),
    '✗ failed on box after 1.0 s · ValueError: bad · job k3f9'
  ],
  [job('rejected', { worker: null }), '✗ no eligible worker · job k3f9'],
  [job('cancelled', { started_at: 1, ended_at: 2.5 }), '■ cancelled on box after 1.5 s · job k3f9'],
  [job('cancelled', { worker: null, submitted_at: 1, ended_at: 2 }), '■ cancelled · job k3f9']
])('$state in one line: %#', (view, line) => {
  expect(statusLine(view, 112.3)).toBe(line);
});

it.each([
  [{ exit_code: 3 }, 'exit code 3'],
  [{ signal: 9 }, 'ended by SIGKILL'],
  [{ signal: 40 }, 'ended by signal 40'],
  [{ exit_code: 1, problem: 'timed out after 10 s' }, 'timed out after 10 s'],
  [{}, '']
])('says how a program ended: %o', (outcome, words) => {
  expect(failure(job('failed', { outcome: { state: 'failed', ...outcome } }))).toBe(words);
});

it('keeps a long error short', () => {
  const error = 'E: ' + 'x'.repeat(1000);
  const view = job('failed', { ended_at: 1, outcome: { state: 'failed', error } });
  expect(statusLine(view, 0).length).toBeLessThan(300);
});

it('counts the machines that do not fit into the line', () => {
  const reasons = Array.from({ length: 20 }, (_, n) => ({
    worker: `machine-${n}`,
    code: 'slots',
    text: 'all of its 16 slots are busy for now'
  }));
  expect(statusLine(job('queued', { reasons }), 0)).toContain('more (%gpulayer status) · job k3f9');
});

test.each([
  [18.2e9, 24e9, '18.2/24 GB'],
  [400e6, 24e9, '400 MB/24 GB'],
  [0, 24e9, '0 B/24 GB']
])('%d of %d bytes are %s', (used, of, text) => {
  expect(part(used, of)).toBe(text);
});

test.each([
  [0, '0%'],
  [0.974, '97%'],
  [1.2, '100%'],
  [-1, '0%']
])('a share of %d is %s', (share, text) => {
  expect(percent(share)).toBe(text);
});

test.each([
  [[24e9], { peak_device_bytes: 6.2e9, peak_rss_bytes: 1 }, '6.2 GB of 24 GB'],
  [[24e9, 24e9], { peak_device_bytes: 40e9 }, '40.0 GB of 48 GB'],
  [[24e9, null], { peak_device_bytes: 6.2e9 }, '6.2 GB'],
  [[24e9], { peak_rss_bytes: 300e6 }, '300.0 MB'],
  [[24e9], {}, '']
])('of devices with %j a job that held %j at most says %s', (memories, held, text) => {
  const devices = memories.map((vram_bytes, index) => ({
    uuid: `u${index}`,
    kind: 'cuda',
    index,
    vram_bytes
  }));
  const ended = job('succeeded', { devices, outcome: { state: 'succeeded', ...held } });
  expect(peak(ended)).toBe(text);
});

test('a job that was refused says why, machine by machine, and what would help', () => {
  const reasons = [
    { worker: 'box', code: 'framework', text: "framework 'jax' not installed" },
    { worker: 'box', code: 'vram', text: 'needs 40 GB, the largest has 24 GB (RTX 4090)' },
    { worker: 'mac', code: 'worker_name', text: "is not 'box'" }
  ];
  const refused = job('rejected', { reasons, nearest: 'install jax on box' });
  expect(reasonLines(refused)).toEqual([
    "  box  framework 'jax' not installed",
    '       needs 40 GB, the largest has 24 GB (RTX 4090)',
    'nearest: install jax on box'
  ]);
});

describe('a status line that was left behind', () => {
  it('is known by its shape and its job', () => {
    expect(isLiveStatus('● running on box · 12.3 s · job k3f9', 'k3f9')).toBe(true);
    expect(isLiveStatus('○ waiting · job k3f9', 'k3f9')).toBe(true);
  });

  it("is none if the job ended, is another's, or it is just text", () => {
    expect(isLiveStatus('✓ done on box in 1.0 s · job k3f9', 'k3f9')).toBe(false);
    expect(isLiveStatus('● running on box · job abcd', 'k3f9')).toBe(false);
    expect(isLiveStatus('running job k3f9', 'k3f9')).toBe(false);
  });
});

describe('the calls of a function', () => {
  const calls = {
    calls: 96,
    done: 31,
    failed: 1,
    dropped: 0,
    running: 4,
    runners: 2,
    idle_since: null
  };

  test.each([
    [calls, '31 of 96 calls done · 4 running · 1 failed · 2 runners'],
    [{ ...calls, done: 96, failed: 0, running: 0, runners: 1 }, '96 calls done · 1 runner'],
    [{ ...calls, calls: 1, done: 1, failed: 0, running: 0, runners: 0 }, '1 call done'],
    [
      { ...calls, failed: 0, dropped: 65, running: 0 },
      '31 of 96 calls done · 65 dropped · 2 runners'
    ],
    [
      { ...calls, calls: 100_000, done: 2500, failed: 0 },
      '2,500 of 100,000 calls done · 4 running · 2 runners'
    ]
  ])('are counted', (count, text) => {
    expect(callsOf(count)).toBe(text);
  });

  test.each([
    ['cancelled', { failed: 0, dropped: 65 }, '31 of 96 calls were done'],
    ['failed', { done: 96 }, '96 calls were done · 1 failed'],
    ['running', {}, '31 of 96 calls done · 4 running · 1 failed · 2 runners']
  ] as const)('do not stay open when it is %s', (state, more, text) => {
    expect(callsLine(job(state, { kind: 'calls', calls: { ...calls, ...more } }))).toBe(text);
    expect(callsLine(job(state, {}))).toBe('');
  });

  it('leave its runners warm once all are done', () => {
    const busy = job('running', { kind: 'calls', calls });
    const warm = job('running', { kind: 'calls', calls: { ...calls, idle_since: 1 } });
    expect([symbol(busy), stateWord(busy)]).toEqual(['●', 'running']);
    expect([symbol(warm), stateWord(warm)]).toEqual(['○', 'warm']);
  });
});
