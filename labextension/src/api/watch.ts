import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { backoffMs } from './backoff';
import type { ISocket } from './socket';
import { abandon } from './socket';
import type {
  IJob,
  ISession,
  IWorker,
  WireJob,
  WireSample,
  WireSession,
  WireWorker
} from './types';
import { isTerminal, toJob, toSample, toSession, toWorker } from './types';

/** All that is known of the machines, jobs and sessions. Replaced whole, never changed in place. */
export interface IFleet {
  /** The control plane's version; '' before its first word. */
  readonly version: string;
  readonly workers: readonly IWorker[];
  /** Newest first. */
  readonly jobs: readonly IJob[];
  readonly sessions: readonly ISession[];
}

/** Whether the fleet is live: 'off' while nobody looks. */
export type Link = 'off' | 'connecting' | 'open' | 'lost';

/** Jobs that ended and are no longer among the newest are let go. */
const ENDED_KEPT = 200;

const EMPTY: IFleet = { version: '', workers: [], jobs: [], sessions: [] };

interface IFleetMessage {
  type: 'fleet' | 'changes';
  version?: string;
  now: number;
  workers?: WireWorker[];
  /** How machines fare now, by their ids. */
  samples?: Record<string, WireSample | null>;
  jobs?: WireJob[];
  sessions?: WireSession[];
  workers_gone?: string[];
  sessions_gone?: string[];
}

/**
 * The fleet, live, by one websocket for the whole page.
 *
 * It is open while somebody looks (`look`), comes back by itself, and takes the first message of each connection for
 * the whole truth. While it is lost the last fleet stays to be seen.
 */
export class Watch implements IDisposable {
  private _socket: ISocket | null = null;
  private _timer: ReturnType<typeof setTimeout> | null = null;
  private _lookers = 0;
  private _failures = 0;
  private _aheadS = 0;
  private _fleet = EMPTY;
  private _link: Link = 'off';
  private _disposed = false;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _lost = new Signal<this, void>(this);

  /** @param open - opens a new websocket to `v1/watch`. */
  constructor(private readonly open: () => ISocket) {}

  /** The fleet as last heard. */
  get fleet(): IFleet {
    return this._fleet;
  }

  /** Whether it is live. */
  get link(): Link {
    return this._link;
  }

  /** The fleet or the link is another. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** A connection could not be had, or was lost. */
  get lost(): ISignal<this, void> {
    return this._lost;
  }

  /** Unix seconds of the control plane's clock, now. */
  now(): number {
    return Date.now() / 1000 + this._aheadS;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Keep the fleet live until the result is disposed. */
  look(): IDisposable {
    this._lookers += 1;
    if (this._lookers === 1) {
      this._connect();
    }
    return new DisposableDelegate(() => {
      this._lookers -= 1;
      if (this._lookers === 0) {
        this._stop();
      }
    });
  }

  /** Once the fleet is here, or it is known that it can't be had now. For those who look. */
  settled(): Promise<void> {
    return new Promise(resolve => {
      const check = (): void => {
        if (this._link === 'open' || this._link === 'lost') {
          this._changed.disconnect(check);
          resolve();
        }
      };
      this._changed.connect(check);
      check();
    });
  }

  /** Connect anew at once, if somebody looks. */
  refresh(): void {
    if (this._lookers > 0 && !this._disposed) {
      this._drop();
      this._failures = 0;
      this._connect();
    }
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      this._drop();
      Signal.clearData(this);
    }
  }

  private _connect(): void {
    if (this._disposed) {
      return;
    }
    if (this._link !== 'lost') {
      this._say('connecting');
    }
    const socket = (this._socket = this.open());
    socket.onmessage = event => {
      this._failures = 0;
      this._hear(JSON.parse(event.data) as IFleetMessage);
    };
    socket.onclose = () => {
      this._socket = null;
      this._failures += 1;
      this._timer = setTimeout(() => this._connect(), backoffMs(this._failures, Math.random()));
      this._say('lost');
      this._lost.emit();
    };
  }

  private _stop(): void {
    this._drop();
    this._failures = 0;
    this._say('off');
  }

  private _drop(): void {
    abandon(this._socket);
    this._socket = null;
    if (this._timer !== null) {
      clearTimeout(this._timer);
      this._timer = null;
    }
  }

  private _say(link: Link): void {
    if (link !== this._link) {
      this._link = link;
      this._changed.emit();
    }
  }

  private _hear(message: IFleetMessage): void {
    if (message.type !== 'fleet' && message.type !== 'changes') {
      return; // of a newer control plane
    }
    this._aheadS = message.now - Date.now() / 1000;
    const base = message.type === 'fleet' ? EMPTY : this._fleet;
    this._fleet = {
      version: message.version ?? base.version,
      workers: sampled(
        merged(base.workers, message.workers?.map(toWorker), message.workers_gone),
        message.samples,
        message.now
      ),
      sessions: merged(base.sessions, message.sessions?.map(toSession), message.sessions_gone),
      jobs: newest(merged(base.jobs, message.jobs?.map(toJob)))
    };
    this._link = 'open';
    this._changed.emit();
  }
}

/** The old ones, each replaced by its newer self, then the new ones; without those that are gone. */
function merged<T extends { id: string }>(
  old: readonly T[],
  changed: readonly T[] = [],
  gone: readonly string[] = []
): readonly T[] {
  if (!changed.length && !gone.length) {
    return old;
  }
  const byId = new Map(old.map(item => [item.id, item]));
  changed.forEach(item => byId.set(item.id, item));
  gone.forEach(id => byId.delete(id));
  return [...byId.values()];
}

/** The machines, those that were sampled with what that showed. */
function sampled(
  workers: readonly IWorker[],
  samples: Record<string, WireSample | null> | undefined,
  at: number
): readonly IWorker[] {
  return samples
    ? workers.map(worker => {
        const sample = samples[worker.id];
        return sample === undefined
          ? worker
          : { ...worker, sample: sample && toSample(sample), sampled_at: at };
      })
    : workers;
}

/** Newest first; of those that ended only the newest. */
function newest(jobs: readonly IJob[]): readonly IJob[] {
  const sorted = [...jobs].sort((a, b) => b.submitted_at - a.submitted_at);
  let ended = 0;
  return sorted.filter(job => !isTerminal(job) || ++ended <= ENDED_KEPT);
}
