/**
 * The words and figures that people read: the same as `gpulayer/notebook/words.py`, which writes them under a cell.
 * The tests hold both to the same cases.
 */

import type { ICalls, IDevice, IJob, IOutcome, IReason, State } from './api/types';

/** What stands before a state, so that colour never speaks alone. */
export const SYMBOLS: Readonly<Record<State, string>> = {
  queued: '○',
  assigned: '◐',
  running: '●',
  succeeded: '✓',
  failed: '✗',
  rejected: '✗',
  cancelled: '■',
  unreachable: '◌',
  lost: '↻'
};

const CANCELLING = '□';

const WORDS: Readonly<Record<State, string>> = {
  queued: 'waiting',
  assigned: 'starting',
  running: 'running',
  succeeded: 'done',
  failed: 'failed',
  rejected: 'failed',
  cancelled: 'cancelled',
  unreachable: 'out of reach',
  lost: 'moved'
};

const UNITS: [string, number][] = [
  ['day', 86_400],
  ['h', 3600],
  ['min', 60],
  ['s', 1]
];

const SIZES: [string, number][] = [
  ['B', 0],
  ['kB', 0],
  ['MB', 1],
  ['GB', 1]
];

/** Of what a waiting job waits for: a line is one line with twenty machines too. */
const WHY_LETTERS = 120;
const ERROR_LETTERS = 200;

/** How a state looks: names a CSS class and, for the eye, a shape. */
export type Look = State | 'cancelling';

/** The state that people see: a job that is being cancelled says so, whatever it does meanwhile. */
export function look(job: IJob): Look {
  return job.cancelling ? 'cancelling' : isWarm(job) ? 'queued' : job.state;
}

/** The shape of a state. */
export function symbol(job: IJob): string {
  return job.cancelling ? CANCELLING : isWarm(job) ? SYMBOLS.queued : SYMBOLS[job.state];
}

/** The word for a job's state. */
export function stateWord(job: IJob): string {
  return job.cancelling ? 'cancelling' : isWarm(job) ? 'warm' : WORDS[job.state];
}

/** Whether it is a function none of whose calls is left to do, and whose runners wait for others. */
export function isWarm(job: IJob): boolean {
  return job.state === 'running' && job.calls !== null && job.calls.idle_since !== null;
}

/** '31 of 96 calls done · 4 running · 1 failed · 2 runners'; calls whose map ended without them are dropped. */
export function callsOf(calls: ICalls): string {
  const ofAll = calls.done === calls.calls ? '' : ` of ${calls.calls.toLocaleString('en')}`;
  const many = (n: number, what: string): string => `${what}${n === 1 ? '' : 's'}`;
  return [
    `${calls.done.toLocaleString('en')}${ofAll} ${many(calls.calls, 'call')} done`,
    calls.running ? `${calls.running.toLocaleString('en')} running` : '',
    calls.failed ? `${calls.failed.toLocaleString('en')} failed` : '',
    calls.dropped ? `${calls.dropped.toLocaleString('en')} dropped` : '',
    calls.runners ? `${calls.runners} ${many(calls.runners, 'runner')}` : ''
  ]
    .filter(Boolean)
    .join(' · ');
}

/** How far the calls of a function are, or were when it ended otherwise than well: '80 of 361 calls were done'. */
export function callsLine(job: IJob): string {
  const calls = job.calls;
  if (!calls || (job.state !== 'cancelled' && job.state !== 'failed')) {
    return calls ? callsOf(calls) : '';
  }
  const ofAll = calls.done === calls.calls ? '' : ` of ${calls.calls.toLocaleString('en')}`;
  const were = calls.calls === 1 ? 'call was' : 'calls were';
  const failed = calls.failed ? ` · ${calls.failed.toLocaleString('en')} failed` : '';
  return `${calls.done.toLocaleString('en')}${ofAll} ${were} done${failed}`;
}

/** '4.2 s', '3 min 12 s', '2 h 05 min'. */
export function duration(seconds: number): string {
  seconds = Math.max(0, seconds);
  if (seconds < 59.95) {
    return `${seconds.toFixed(1)} s`;
  }
  const whole = Math.trunc(Math.max(seconds, 60));
  if (whole < 3600) {
    return `${Math.trunc(whole / 60)} min ${two(whole % 60)} s`;
  }
  return `${Math.trunc(whole / 3600)} h ${two(Math.trunc((whole % 3600) / 60))} min`;
}

/** The same in a list, where nothing may jump: '4 s', '3 min', '2 h 05 min'. */
export function shortDuration(seconds: number): string {
  const whole = Math.max(0, Math.trunc(seconds));
  if (whole < 60) {
    return `${whole} s`;
  }
  return whole < 3600 ? `${Math.trunc(whole / 60)} min` : duration(whole);
}

/** 'just now', '42 s ago', '2 min ago', '3 days ago'. */
export function ago(seconds: number): string {
  for (const [unit, length] of UNITS) {
    const whole = Math.floor(seconds / length);
    if (whole > 0 && (unit !== 's' || whole >= 10)) {
      return `${whole} ${unit}${unit === 'day' && whole > 1 ? 's' : ''} ago`;
    }
  }
  return 'just now';
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** '41 kB', '1.2 GB'. */
export function size(count: number): string {
  for (const [unit, digits] of SIZES) {
    if (Number(count.toFixed(digits)) < 1000) {
      return `${count.toFixed(digits)} ${unit}`;
    }
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

/** '97%' of a share from 0 to 1. */
export function percent(share: number): string {
  return `${Math.round(Math.min(1, Math.max(0, share)) * 100)}%`;
}

/** '1st', '2nd', '11th'. */
export function ordinal(place: number): string {
  if ([11, 12, 13].includes(place % 100)) {
    return `${place}th`;
  }
  return `${place}${{ 1: 'st', 2: 'nd', 3: 'rd' }[place % 10] ?? 'th'}`;
}

/** '24 GB', '6.2 GB': without a nought behind the point. */
export function wholeSize(count: number): string {
  return size(count).replace('.0 ', ' ');
}

/** '18.2/24 GB'; where the units differ, '400 MB/24 GB'. */
export function part(used: number, of: number): string {
  const [amount, unit] = size(used).split(' ');
  const whole = wholeSize(of);
  return whole.endsWith(` ${unit}`) ? `${amount}/${whole}` : `${wholeSize(used)}/${whole}`;
}

const MAKERS = ['NVIDIA ', 'GeForce ', 'Tesla ', 'AMD ', 'Instinct '];

/** 'cuda:0 RTX 4090': without the maker's name, there is little room. */
export function deviceName(device: IDevice): string {
  const model = MAKERS.reduce(
    (name, maker) => (name.startsWith(maker) ? name.slice(maker.length) : name),
    device.name
  );
  return `${device.kind}:${device.index} ${model}`.trimEnd();
}

/** What a job held at most: '6.2 GB of 24 GB' of its devices' memory where that is known, else RAM; '' unknown. */
export function peak(job: IJob): string {
  const { outcome, devices } = job;
  if (!outcome?.peak_device_bytes) {
    return outcome?.peak_rss_bytes ? size(outcome.peak_rss_bytes) : '';
  }
  const known = devices.length > 0 && devices.every(device => device.vram_bytes);
  const whole = devices.reduce((all, device) => all + (device.vram_bytes ?? 0), 0);
  return size(outcome.peak_device_bytes) + (known ? ` of ${wholeSize(whole)}` : '');
}

/** Texts by machine; '' as a machine for what is nobody's in particular. */
function byMachine(reasons: readonly IReason[]): [string, string[]][] {
  const byWorker = new Map<string, string[]>();
  for (const reason of reasons) {
    byWorker.set(reason.worker, [...(byWorker.get(reason.worker) ?? []), reason.text]);
  }
  return [...byWorker];
}

/** Why a job was refused, as lines with a column of machines, for a traceback. */
export function reasonLines(job: IJob): string[] {
  const asked = job.reasons.filter(reason => reason.code !== 'worker_name');
  const machines = byMachine(asked.length ? asked : job.reasons);
  const width = Math.max(0, ...machines.map(([name]) => name.length));
  const lines = machines.flatMap(([name, texts]) =>
    texts.map((text, n) => `  ${name ? (n ? '' : name).padEnd(width) + '  ' : ''}${text}`)
  );
  return job.nearest ? [...lines, `nearest: ${job.nearest}`] : lines;
}

/** 'cuda', '2 cuda'; '' where any machine fits. */
export function wanted(job: IJob): string {
  const { accelerator, devices } = job.requirements;
  if (!accelerator || accelerator === 'cpu') {
    return '';
  }
  return devices > 1 ? `${devices} ${accelerator}` : accelerator;
}

/** Why a job did not succeed, in one short line; '' where nothing is known. */
export function failure(job: IJob): string {
  const why = job.outcome?.problem || job.outcome?.error || programEnd(job.outcome);
  return why.split('\n')[0]?.slice(0, ERROR_LETTERS) ?? '';
}

/** The names of signals that end programs, by Linux's numbers. */
const SIGNALS: Readonly<Record<number, string>> = {
  1: 'SIGHUP',
  2: 'SIGINT',
  3: 'SIGQUIT',
  6: 'SIGABRT',
  7: 'SIGBUS',
  8: 'SIGFPE',
  9: 'SIGKILL',
  11: 'SIGSEGV',
  13: 'SIGPIPE',
  15: 'SIGTERM'
};

/** 'exit code 3', 'ended by SIGKILL'; '' for what ended well, or by itself never. */
export function programEnd(outcome: IOutcome | null): string {
  if (outcome?.signal) {
    return `ended by ${SIGNALS[outcome.signal] ?? `signal ${outcome.signal}`}`;
  }
  return outcome?.exit_code ? `exit code ${outcome.exit_code}` : '';
}

/** How long a job has run, or did; of one that never ran, how long it has waited, or did. */
export function runningS(job: IJob, now: number): number {
  return (job.ended_at || now) - (job.started_at || job.submitted_at || now);
}

function place(job: IJob): string {
  const device = job.devices[0];
  if (!device) {
    return '';
  }
  const more = job.devices.length > 1 ? ` and ${job.devices.length - 1} more` : '';
  return ` · ${deviceName(device)}${more}`;
}

function notes(job: IJob): string {
  return job.notes.map(note => ` · ${note}`).join('');
}

/**
 * One line about a job: what it waits for, where it runs, how it ended.
 *
 * @param now - Unix seconds of the control plane's clock.
 */
export function statusLine(job: IJob, now: number): string {
  return `${symbol(job)} ${said(job, now)} · job ${job.id}`;
}

function said(job: IJob, now: number): string {
  if (job.cancelling) {
    return `cancelling${on(job)}`;
  }
  const doing = job.progress ? ` · ${job.progress}` : '';
  switch (job.state) {
    case 'queued':
      return waiting(job);
    case 'assigned':
      return `starting${on(job)}${doing}`;
    case 'running': {
      const took = duration(now - (job.started_at || now));
      return `running${on(job)}${place(job)} · ${took}${doing}${notes(job)}`;
    }
    case 'unreachable':
      return `out of reach: ${job.worker} does not answer, the job may go on there`;
    case 'lost':
      return `moved: ${job.worker} is lost, trying again`;
    default:
      return ended(job);
  }
}

function on(job: IJob): string {
  return job.worker ? ` on ${job.worker}` : '';
}

function waiting(job: IJob): string {
  const device = wanted(job);
  const what = device ? ` for ${device}` : '';
  const line = job.ahead ? ` · ${ordinal(job.ahead + 1)} in line` : '';
  return ['waiting' + line + what, ...fitting(reasons(job))].join(' · ');
}

/**
 * Why a job waits, or was refused, machine by machine. First the machines that could take it later; those of another
 * name than was asked for only where nothing else is.
 */
function reasons(job: IJob): string[] {
  const others = job.reasons.filter(reason => reason.code !== 'worker_name');
  const sorted = [...(others.length ? others : job.reasons)].sort(
    (a, b) => Number(b.temporary) - Number(a.temporary)
  );
  return byMachine(sorted).map(([name, texts]) => {
    const words = texts.map(text => text.trim().split(/\s+/).join(' ')).join('; ');
    return name ? `${name}: ${words}` : words;
  });
}

/** The first of them, at least one, and how many more there are. */
function fitting(why: string[]): string[] {
  const taken: string[] = [];
  let left = WHY_LETTERS;
  for (const each of why) {
    if (taken.length && each.length > left) {
      return [...taken, `${why.length - taken.length} more (%gpulayer status)`];
    }
    taken.push(each);
    left -= each.length;
  }
  return taken;
}

function ended(job: IJob): string {
  const took = duration(runningS(job, 0));
  if (job.state === 'succeeded') {
    return `done${on(job)} in ${took}${peak(job) ? ` · peak ${peak(job)}` : ''}${notes(job)}`;
  }
  if (job.state === 'rejected') {
    return 'no eligible worker';
  }
  if (job.state === 'cancelled') {
    return job.worker ? `cancelled${on(job)} after ${took}` : 'cancelled';
  }
  const why = failure(job);
  return `failed${on(job)} after ${took}${why ? ` · ${why}` : ''}${notes(job)}`;
}

/** Whether `text` is a status line of that job which says that it has not ended. */
export function isLiveStatus(text: string, job: string): boolean {
  return /^[○◐●□◌↻] /.test(text) && text.trimEnd().endsWith(`job ${job}`);
}
