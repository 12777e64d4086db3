// @vitest-environment jsdom
import React, { act } from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { toSession, toWorker } from '../../src/api/types';
import { nearestFirst } from '../../src/panel/jobs';
import { type IPanelProps, Panel } from '../../src/panel/panel';
import { VERSION } from '../../src/version';
import { trans } from '../fake';
import { GPUS, job } from '../make';

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;

let node: HTMLElement;
let root: Root;

beforeEach(() => {
  node = document.createElement('div');
  document.body.append(node);
  root = createRoot(node);
});

afterEach(() => {
  act(() => root.unmount());
  node.remove();
});

const LAPTOP = toWorker({
  id: 'w1',
  name: 'laptop',
  connected: true,
  local: true,
  slots: 4,
  slots_free: 3
});
const WIRE_BOX = {
  id: 'w2',
  name: 'box',
  connected: true,
  slots: 2,
  slots_free: 1,
  devices_free: ['u2'],
  inventory: { devices: GPUS, problems: ['NVML failed'] }
};
const BOX = toWorker(WIRE_BOX);

const actions = () => ({
  addMachine: vi.fn(),
  refresh: vi.fn(),
  openJob: vi.fn(),
  cancelJob: vi.fn(),
  releaseSession: vi.fn()
});

function draw(
  facts: Partial<Omit<IPanelProps, 'fleet'>> & { fleet?: Partial<IPanelProps['fleet']> } = {}
): IPanelProps['actions'] {
  const props: IPanelProps = {
    link: 'open',
    status: null,
    now: 1000,
    trans,
    actions: actions(),
    ...facts,
    fleet: { version: VERSION, workers: [LAPTOP], jobs: [], sessions: [], ...facts.fleet }
  };
  act(() => root.render(<Panel {...props} />));
  return props.actions;
}

const find = (selector: string) => node.querySelector<HTMLElement>(selector);
const click = (selector: string) => act(() => find(selector)?.click());
const words = (selector: string) => find(selector)?.textContent ?? '';

describe('machines', () => {
  it('say how many are there, what is free, and who holds a device', () => {
    const running = job('running', { id: 'j1', name: 'train.py', devices: GPUS.slice(0, 1) });
    draw({ fleet: { workers: [LAPTOP, BOX], jobs: [running] } });
    expect(words('[data-section="machines"]')).toContain('2 online');
    expect(words('[data-worker="box"]')).toContain('1 job · 1 of 2 slots free');
    expect(words('[data-device="u1"]')).toBe('cuda:1 RTX 409024 GB · train.py');
    expect(words('[data-device="u2"]')).toContain('free');
    expect(words('[data-worker="box"]')).toContain('NVML failed');
    expect(words('[data-worker="laptop"]')).toContain('(this machine)');
  });

  it('show how a device fares: its use, memory, warmth, and who else is on it', () => {
    const sample = {
      devices: [
        {
          uuid: 'u1',
          used_bytes: 18.2e9,
          utilisation: 0.97,
          temperature_c: 71.4,
          foreign: [{ pid: 4121, name: 'python', user: 'alice', bytes: 6.2e9 }]
        }
      ]
    };
    draw({
      fleet: {
        workers: [toWorker({ ...WIRE_BOX, devices_free: ['u1', 'u2'], sample, sampled_at: 1 })]
      }
    });
    const device = words('[data-device="u1"]');
    expect(device).toContain('97%');
    expect(device).toContain('18.2/24 GB · 71°C · free');
    expect(device).toContain('not of GPUlayer: python, pid 4121 by alice: 6.2 GB');
    expect(words('[data-device="u2"]')).not.toContain('%');
  });

  it('a sick device says what ails it', () => {
    const devices = [{ ...GPUS[0]!, sick: 'Xid 79: fallen off the bus' }, GPUS[1]!];
    const inventory = { ...WIRE_BOX.inventory, devices };
    draw({ fleet: { workers: [toWorker({ ...WIRE_BOX, inventory })] } });
    expect(words('[data-device="u1"]')).toContain('sick');
    expect(words('[data-device="u1"]')).toContain('Xid 79: fallen off the bus');
    expect(words('[data-device="u2"]')).toContain('free');
  });

  it('show what works there, and what does not and why', () => {
    const inventory = {
      ...WIRE_BOX.inventory,
      frameworks: [
        { name: 'torch', version: '2.9.1+cu130', works: ['cpu', 'cuda'] },
        { name: 'jax', version: '0.7', problems: { '': 'it crashed' } }
      ],
      probing: ['mlx']
    };
    draw({ fleet: { workers: [toWorker({ ...WIRE_BOX, inventory })] } });
    expect(words('[data-framework="torch"]')).toBe('torch 2.9.1 cuda ✓');
    expect(words('[data-framework="jax"]')).toBe('jax 0.7 ✗');
    expect(find('[data-framework="jax"]')?.getAttribute('title')).toBe('it crashed');
    expect(words('.gpulayer-Frameworks')).toContain('mlx …');
  });

  it('show how the machine itself fares', () => {
    const sample = {
      cpu: 0.4,
      ram_used_bytes: 8e9,
      disk_free_bytes: 120e9,
      received_bps: 2e6,
      sent_bps: 1e3
    };
    draw({ fleet: { workers: [toWorker({ ...WIRE_BOX, sample })] } });
    expect(words('.gpulayer-Host')).toContain('CPU 40%');
    expect(words('.gpulayer-Host')).toContain('disk 120.0 GB free');
    expect(words('.gpulayer-Host')).toContain('↓ 2.0 MB/s ↑ 1 kB/s');
  });

  it('fold and unfold', () => {
    draw({ fleet: { workers: [BOX] } });
    const head = find('[data-worker="box"] button');
    expect(head?.getAttribute('aria-expanded')).toBe('true');
    click('[data-worker="box"] button');
    expect(head?.getAttribute('aria-expanded')).toBe('false');
    expect(find('[data-device]')).toBeNull();
  });

  it('out of reach are told by words and a shape', () => {
    draw({ fleet: { workers: [LAPTOP, { ...BOX, connected: false, last_seen_at: 700 }] } });
    expect(words('[data-worker="box"]')).toContain('◌ out of reach 5 min ago');
    expect(words('[data-section="machines"]')).toContain('1 online');
  });

  it('are asked for where there is only this one', () => {
    const done = draw();
    expect(words('[data-section="machines"]')).toContain('Only this machine so far.');
    click('[data-action="add-machine"]');
    expect(done.addMachine).toHaveBeenCalledOnce();
  });
});

describe('jobs', () => {
  const REASONS = [
    { worker: 'mac', code: 'device_kind', text: 'no cuda' },
    { worker: 'box', code: 'devices_busy', text: 'both busy', temporary: true },
    { worker: 'old', code: 'device_kind', text: 'no cuda' },
    { worker: 'old', code: 'out_of_reach', text: 'away', temporary: true }
  ];
  const JOBS = [
    job('queued', { id: 'q', name: 'sweep', worker: null, submitted_at: 990, reasons: REASONS }),
    job('running', { id: 'r', name: 'cell', started_at: 246 }),
    job('running', { id: 'c', name: 'cell', cancelling: true, started_at: 900 }),
    job('failed', {
      id: 'f',
      ended_at: 880,
      outcome: { state: 'failed', problem: 'out of memory' }
    })
  ];

  it('of a function tell how many calls are over, and the rest on hover', () => {
    const calls = {
      ...{ calls: 96, done: 31, failed: 1, dropped: 0 },
      ...{ running: 4, runners: 2, idle_since: null }
    };
    draw({
      fleet: { jobs: [job('running', { id: 'f', name: 'estimate', kind: 'calls', calls })] }
    });
    const bar = find('[data-job="f"] progress');
    expect(bar?.getAttribute('aria-label')).toBe('31 of 96 calls are over');
    expect(find('[data-job="f"] .gpulayer-Tasks')?.title).toBe(
      '31 of 96 calls done · 4 running · 1 failed · 2 runners'
    );
  });

  it('with many tasks tell how many are over, and their command on hover', () => {
    const tasks = { succeeded: 30, failed: 1, running: 4, queued: 61 };
    draw({
      fleet: { jobs: [job('running', { id: 's', name: 'sweep', command: './run.sh 1', tasks })] }
    });
    expect(words('[data-job="s"] .gpulayer-Tasks')).toBe('31 of 96');
    const bar = find('[data-job="s"] progress');
    expect([bar?.getAttribute('max'), bar?.getAttribute('value')]).toEqual(['96', '31']);
    expect(bar?.getAttribute('aria-label')).toBe('31 of 96 tasks are over');
    expect(find('[data-job="s"] .gpulayer-Job-open .gpulayer-Name')?.title).toBe('./run.sh 1');
  });

  it('with one task show no count', () => {
    draw({ fleet: { jobs: JOBS } });
    expect(find('.gpulayer-Tasks')).toBeNull();
  });

  it('show their state as a word for those who see no shape', () => {
    draw({ fleet: { jobs: JOBS } });
    const states = [...node.querySelectorAll('[data-section="jobs"] .gpulayer-State')];
    expect(states.map(state => [state.getAttribute('aria-label'), state.textContent])).toEqual([
      ['waiting', '○'],
      ['running', '●'],
      ['cancelling', '□'],
      ['failed', '✗']
    ]);
    expect(words('[data-job="r"]')).toContain('12 min');
    expect(words('[data-job="f"]')).toContain('2 min ago');
    expect(words('[data-job="f"]')).toContain('out of memory');
  });

  it('are opened and cancelled; what is being cancelled can not be again', () => {
    const done = draw({ fleet: { jobs: JOBS } });
    click('[data-job="r"] [data-action="open-job"]');
    click('[data-job="r"] [data-action="cancel-job"]');
    expect(done.openJob).toHaveBeenCalledWith(JOBS[1]);
    expect(done.cancelJob).toHaveBeenCalledWith(JOBS[1]);
    expect(find('[data-job="c"] [data-action="cancel-job"]')).toBeNull();
    expect(find('[data-job="f"] [data-action="cancel-job"]')).toBeNull();
  });

  it('that wait say why, the nearest miss first', () => {
    draw({ fleet: { jobs: JOBS } });
    expect(find('.gpulayer-Why')).toBeNull();
    click('[data-job="q"] [data-action="why"]');
    const rows = [...node.querySelectorAll('.gpulayer-Why tbody tr')].map(row => row.textContent);
    expect(rows).toEqual(['boxboth busy · for now', 'macno cuda', 'oldno cudaaway · for now']);
    expect(nearestFirst([])).toEqual([]);
  });

  it('are all, or those that live', () => {
    draw({ fleet: { jobs: JOBS } });
    click('[data-filter="running"]');
    const shown = [...node.querySelectorAll<HTMLElement>('[data-job]')].map(
      row => row.dataset['job']
    );
    expect(shown).toEqual(['q', 'r', 'c']);
    expect(find('[data-filter="running"]')?.getAttribute('aria-pressed')).toBe('true');
  });

  it('are explained where there is none', () => {
    draw();
    expect(words('[data-section="jobs"]')).toContain('Begin a cell with %%gpulayer');
  });

  it('of thousands show the newest', () => {
    const many = Array.from({ length: 1000 }, (_, n) => job('running', { id: `j${n}` }));
    draw({ fleet: { jobs: many } });
    expect(node.querySelectorAll('[data-job]')).toHaveLength(100);
    expect(words('[data-section="jobs"]')).toContain('and 900 more');
  });
});

describe('sessions', () => {
  it('say what they do, and are released', () => {
    const idle = toSession({
      id: 's1',
      name: 'train',
      worker: 'box',
      connected: true,
      idle_since: 760
    });
    const busy = toSession({
      id: 's2',
      name: 'look',
      worker: 'box',
      connected: true,
      running: 'k3f9'
    });
    const done = draw({ fleet: { sessions: [idle, busy] } });
    expect(words('[data-session="train"]')).toContain('idle 4 min');
    expect(words('[data-session="look"]')).toContain('running k3f9');
    click('[data-session="train"] [data-action="release-session"]');
    expect(done.releaseSession).toHaveBeenCalledWith(idle);
  });
});

describe('what stands in the way', () => {
  const status = (
    state: 'starting' | 'failed' | 'missing' | 'holds',
    text = '',
    version = VERSION
  ) => ({
    state,
    text,
    version,
    url: null
  });
  const NOTHING = { version: '', workers: [], jobs: [], sessions: [] };

  it('is told with its reason', () => {
    draw({ link: 'lost', status: status('failed', 'disk full'), fleet: NOTHING });
    expect(words('[data-kind="error"]')).toContain('disk full');
    draw({ link: 'lost', status: status('starting', 'opening the store'), fleet: NOTHING });
    expect(words('[data-kind="starting"]')).toContain('opening the store');
    draw({ link: 'lost', status: status('missing'), fleet: NOTHING });
    expect(words('[data-kind="error"]')).toContain('gpulayer_jupyter');
    expect(find('[data-section]')).toBeNull();
  });

  it('leaves the last known fleet to be seen', () => {
    const done = draw({ link: 'lost', status: status('holds') });
    expect(words('[data-kind="lost"]')).toContain('trying again');
    expect(find('[data-worker="laptop"]')).not.toBeNull();
    click('[data-action="retry"]');
    expect(done.refresh).toHaveBeenCalledOnce();
  });

  it('is another version, with the command that mends it', () => {
    draw({ status: status('holds', '', '9.9') });
    expect(words('[data-kind="version"]')).toContain('9.9');
    expect(words('[data-kind="version"]')).toContain('pip install --upgrade gpulayer');
    draw({ status: status('holds') });
    expect(find('[data-kind="version"]')).toBeNull();
  });
});

it('a fault in one part leaves the others', () => {
  const silent = vi.spyOn(console, 'error').mockImplementation(() => undefined);
  draw({ fleet: { workers: [{ ...LAPTOP, inventory: null as never }] } });
  expect(words('[role="alert"]')).toContain('This part of GPUlayer stopped');
  expect(find('[data-section="jobs"]')).not.toBeNull();
  silent.mockRestore();
});
