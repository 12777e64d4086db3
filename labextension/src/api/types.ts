/**
 * What the control plane says, as `gpulayer/protocol/types.py` defines it. On the wire a field that has its default
 * is left out: `toJob`, `toWorker` and `toSession` put it back.
 */

export type State =
  | 'queued'
  | 'assigned'
  | 'running'
  | 'unreachable'
  | 'lost'
  | 'succeeded'
  | 'failed'
  | 'cancelled'
  | 'rejected';

/** States that no job leaves. */
export const TERMINAL: ReadonlySet<State> = new Set<State>([
  'succeeded',
  'failed',
  'cancelled',
  'rejected'
]);

/** One accelerator. */
export interface IDevice {
  uuid: string;
  kind: string;
  index: number;
  name: string;
  vram_bytes: number | null;
  unified: boolean; // its memory is the machine's
  sick: string; // why it takes no work
}

/** A library, and on what it was seen to compute. */
export interface IFramework {
  name: string;
  version: string; // '' where it is not installed
  works: string[]; // kinds of devices, cpu among them
  problems: Record<string, string>; // by kind; '' in general
}

/** A device at one moment. */
export interface IDeviceSample {
  uuid: string;
  used_bytes: number | null;
  free_bytes: number | null;
  utilisation: number | null; // 0 to 1
  temperature_c: number | null;
  foreign: { pid: number; name?: string; user?: string; bytes?: number | null }[];
}

/** A machine at one moment. */
export interface ISample {
  cpu: number | null; // 0 to 1
  ram_used_bytes: number | null;
  ram_free_bytes: number | null;
  disk_free_bytes: number | null;
  received_bps: number | null; // bytes per second
  sent_bps: number | null;
  devices: IDeviceSample[];
}

/** What a machine is and has. */
export interface IInventory {
  host: string;
  os: string;
  arch: string;
  cpu_cores: number;
  ram_bytes: number;
  python: string;
  devices: IDevice[];
  problems: string[];
  frameworks: IFramework[];
  probing: string[]; // frameworks of which it is not known yet
  region: string;
  zone: string;
}

/** How an attempt ended. */
export interface IOutcome {
  state: State;
  exit_code: number | null;
  signal: number | null;
  problem: string;
  error: string;
  peak_rss_bytes: number | null;
  peak_device_bytes: number | null;
  tail: string;
}

/** One thing that keeps a job from one machine. */
export interface IReason {
  worker: string;
  code: string;
  text: string;
  temporary: boolean;
  remedy: string; // the step that would mend it
}

/** What a job asks of a machine. */
export interface IRequirements {
  accelerator: string | null;
  devices: number;
  worker: string | null;
}

/** The calls of a function's job, over all of its maps. */
export interface ICalls {
  calls: number; // that came in
  done: number;
  failed: number;
  dropped: number; // whose map ended before they had a result
  running: number;
  runners: number;
  idle_since: number | null; // Unix seconds; null while there is a call
}

/** A job. Times are Unix seconds of the control plane's clock. */
export interface IJob {
  id: string;
  state: State;
  kind: string; // 'cell', 'command' or 'calls'
  calls: ICalls | null; // of a function
  command: string; // of a command, as a shell would take it
  tasks: Partial<Record<State, number>>; // of a job with many tasks: how many in each state
  name: string;
  cancelling: boolean;
  owner: string;
  session: string | null;
  requirements: IRequirements;
  notebook: string;
  cell_id: string;
  attempt: string | null;
  attempts: number;
  worker: string | null;
  devices: IDevice[];
  reasons: IReason[];
  nearest: string; // the step that would make it fit
  ahead: number;
  progress: string;
  notes: string[];
  submitted_at: number;
  started_at: number | null;
  ended_at: number | null;
  outcome: IOutcome | null;
}

/** A machine. */
export interface IWorker {
  id: string;
  name: string;
  connected: boolean;
  slots: number;
  slots_free: number;
  inventory: IInventory;
  devices_free: string[];
  sessions: number;
  local: boolean;
  last_seen_at: number;
  notes: string[];
  sample: ISample | null;
  sampled_at: number | null;
}

/** A kernel that is kept between cells. */
export interface ISession {
  id: string;
  name: string;
  worker: string;
  connected: boolean;
  devices: IDevice[];
  running: string | null;
  opened_at: number;
  idle_since: number | null;
  idle_timeout_s: number;
}

/** A token that lets a machine join; `token` is seen once, when it is made. */
export interface IToken {
  id: string;
  name: string;
  role: string;
  token?: string;
  expires_at: number | null;
  single_use: boolean;
  used_by?: string | null;
}

/**
 * How the Jupyter server stands to the control plane: `GET gpulayer/status`. It does not say 'missing' (it has no such
 * route) and 'away' (it does not answer): this page does.
 */
export interface IServerStatus {
  version: string;
  state: 'holds' | 'attached' | 'remote' | 'starting' | 'failed' | 'missing' | 'away';
  text: string;
  url: string | null;
}

/** One event of a job's output. */
export interface IJobEvent {
  seq: number;
  kind: string;
  msg_type: string;
  content: Record<string, unknown>;
}

type Wire<T, Required extends keyof T> = Partial<T> & Pick<T, Required>;

export type WireDevice = Wire<IDevice, 'uuid' | 'kind' | 'index'>;
export type WireSample = Omit<Partial<ISample>, 'devices'> & {
  devices?: Wire<IDeviceSample, 'uuid'>[];
};
export type WireJob = Omit<
  Wire<IJob, 'id' | 'state'>,
  'devices' | 'reasons' | 'outcome' | 'requirements'
> & {
  devices?: WireDevice[];
  reasons?: Wire<IReason, 'worker' | 'code' | 'text'>[];
  outcome?: Wire<IOutcome, 'state'> | null;
  requirements?: Partial<IRequirements>;
};
export type WireWorker = Omit<Wire<IWorker, 'id' | 'name'>, 'inventory' | 'sample'> & {
  inventory?: Omit<Partial<IInventory>, 'devices' | 'frameworks'> & {
    devices?: WireDevice[];
    frameworks?: Wire<IFramework, 'name'>[];
  };
  sample?: WireSample | null;
};
export type WireSession = Omit<Wire<ISession, 'id' | 'name' | 'worker'>, 'devices'> & {
  devices?: WireDevice[];
};

function toDevice(wire: WireDevice): IDevice {
  return { name: '', vram_bytes: null, unified: false, sick: '', ...wire };
}

/** A sample with every field. */
export function toSample(wire: WireSample): ISample {
  return {
    cpu: null,
    ram_used_bytes: null,
    ram_free_bytes: null,
    disk_free_bytes: null,
    received_bps: null,
    sent_bps: null,
    ...wire,
    devices: (wire.devices ?? []).map(device => ({
      used_bytes: null,
      free_bytes: null,
      utilisation: null,
      temperature_c: null,
      foreign: [],
      ...device
    }))
  };
}

function toOutcome(wire: Wire<IOutcome, 'state'>): IOutcome {
  return {
    exit_code: null,
    signal: null,
    problem: '',
    error: '',
    peak_rss_bytes: null,
    peak_device_bytes: null,
    tail: '',
    ...wire
  };
}

function toCalls(wire: Partial<ICalls>): ICalls {
  return {
    calls: 0,
    done: 0,
    failed: 0,
    dropped: 0,
    running: 0,
    runners: 0,
    idle_since: null,
    ...wire
  };
}

/** A job with every field. */
export function toJob(wire: WireJob): IJob {
  return {
    kind: 'cell',
    calls: null,
    command: '',
    tasks: {},
    name: '',
    cancelling: false,
    owner: '',
    session: null,
    notebook: '',
    cell_id: '',
    attempt: null,
    attempts: 0,
    worker: null,
    nearest: '',
    ahead: 0,
    progress: '',
    notes: [],
    submitted_at: 0,
    started_at: null,
    ended_at: null,
    ...wire,
    ...(wire.calls ? { calls: toCalls(wire.calls) } : {}),
    requirements: { accelerator: null, devices: 0, worker: null, ...wire.requirements },
    devices: (wire.devices ?? []).map(toDevice),
    reasons: (wire.reasons ?? []).map(reason => ({ temporary: false, remedy: '', ...reason })),
    outcome: wire.outcome ? toOutcome(wire.outcome) : null
  };
}

/** A machine with every field. */
export function toWorker(wire: WireWorker): IWorker {
  return {
    connected: false,
    slots: 0,
    slots_free: 0,
    devices_free: [],
    sessions: 0,
    local: false,
    last_seen_at: 0,
    notes: [],
    sampled_at: null,
    ...wire,
    sample: wire.sample ? toSample(wire.sample) : null,
    inventory: {
      host: '',
      os: '',
      arch: '',
      cpu_cores: 0,
      ram_bytes: 0,
      python: '',
      problems: [],
      probing: [],
      region: '',
      zone: '',
      ...wire.inventory,
      devices: (wire.inventory?.devices ?? []).map(toDevice),
      frameworks: (wire.inventory?.frameworks ?? []).map(framework => ({
        version: '',
        works: [],
        problems: {},
        ...framework
      }))
    }
  };
}

/** A session with every field. */
export function toSession(wire: WireSession): ISession {
  return {
    connected: false,
    running: null,
    opened_at: 0,
    idle_since: null,
    idle_timeout_s: 1800,
    ...wire,
    devices: (wire.devices ?? []).map(toDevice)
  };
}

/** Whether a job will not change any more. */
export function isTerminal(job: IJob): boolean {
  return TERMINAL.has(job.state);
}
