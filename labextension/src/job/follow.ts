import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { EventsState, IEventsTaker } from '../api/events';
import { JobEvents } from '../api/events';
import type { ISocket } from '../api/socket';
import type { IJob, IJobEvent } from '../api/types';
import type { IOutputs } from '../replay/outputs';
import type { IReplayOptions } from '../replay/replay';
import { Replay } from '../replay/replay';

/** About ten times a second people see what came. */
const FLUSH_MS = 100;

/** While a flood is written the page gets to do other things in between. */
const MORE_MS = 30;

/** How often a running time, and the newest of what is too much to show, are shown anew. */
const TICK_MS = 1000;

/** What a `Follow` needs. */
export interface IFollowOptions extends IReplayOptions {
  /** Opens a websocket to the job's events. */
  open: (query: Record<string, string>) => ISocket;
  /** Where the output goes. */
  outputs: IOutputs;
  /** Asked before each writing: true, and it ends without another word. */
  disturbed?: () => boolean;
}

/** A job's output into some outputs, live, until the job is over, it is disposed, or somebody else writes there. */
export class Follow implements IDisposable, IEventsTaker {
  private readonly _events: JobEvents;
  private readonly _replay: Replay;
  private _flushing: ReturnType<typeof setTimeout> | null = null;
  private _ticking: ReturnType<typeof setInterval> | null = null;
  private _disposed = false;
  private _heard = false; // before the first word nothing is written: what stands there stays
  private _complete = false;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _ended = new Signal<this, void>(this);

  constructor(private readonly options: IFollowOptions) {
    this._replay = new Replay(options.outputs, options);
    this._events = new JobEvents(options.open, this);
    this._events.stateChanged.connect(() => this._changed.emit());
  }

  /** The job as last heard; null before the first word. */
  get job(): IJob | null {
    return this._replay.job;
  }

  /** How it stands with the connection. */
  get state(): EventsState {
    return this._events.state;
  }

  /** Whether all of the job's output stands there, and the job is over. */
  get complete(): boolean {
    return this._complete;
  }

  /** The job or the connection is another. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** It wrote its last: the job is over and complete, or somebody else wrote there. */
  get ended(): ISignal<this, void> {
    return this._ended;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  start(): void {
    this._events.start();
    this._ticking = setInterval(() => this._tick(), TICK_MS);
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      this._stop();
      this._events.dispose();
      Signal.clearData(this);
    }
  }

  onJob(job: IJob): void {
    this._replay.onJob(job);
    this._soon();
    this._changed.emit();
  }

  onRestart(): void {
    this._replay.onRestart();
    this._soon();
  }

  onEvents(events: readonly IJobEvent[]): void {
    this._replay.onEvents(events);
    this._soon();
  }

  private _soon(delay = FLUSH_MS): void {
    this._heard = true;
    this._flushing ??= setTimeout(() => {
      this._flushing = null;
      this._flush();
    }, delay);
  }

  private _tick(): void {
    if (this._heard) {
      this._replay.preview();
      this._replay.tick();
      this._soon(0);
    }
  }

  private _flush(): void {
    if (this.options.disturbed?.()) {
      this._end();
      return;
    }
    if (this._replay.flush()) {
      this._soon(MORE_MS);
    } else if (this._replay.finished) {
      this._complete = true;
      this._end();
    }
  }

  private _end(): void {
    this._stop();
    this._events.dispose();
    this._ended.emit();
  }

  private _stop(): void {
    if (this._flushing !== null) {
      clearTimeout(this._flushing);
      this._flushing = null;
    }
    if (this._ticking !== null) {
      clearInterval(this._ticking);
      this._ticking = null;
    }
  }
}
