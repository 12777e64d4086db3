import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { backoffMs } from './backoff';
import type { ICloseEvent, ISocket } from './socket';
import { abandon } from './socket';
import type { IJob, IJobEvent, WireJob } from './types';
import { isTerminal, toJob } from './types';

/** 'over': the job ended and all of its output was seen. 'unknown': there is no such job. */
export type EventsState = 'connecting' | 'open' | 'lost' | 'over' | 'unknown';

/** The control plane closes with this where it knows no such job. */
const NO_SUCH_JOB = 4404;

interface IMessage {
  type: 'job' | 'attempt' | 'events';
  job?: WireJob;
  attempt?: string;
  events?: IJobEvent[];
}

/** Who takes a job's output, in order, each event once. */
export interface IEventsTaker {
  /** The job is this now; a terminal one comes after the last event. */
  onJob(job: IJob): void;
  /** What came before is void: another attempt begins. */
  onRestart(): void;
  /** The next events. */
  onEvents(events: readonly IJobEvent[]): void;
}

/** One job's output by a websocket of its own, which comes back by itself where it was: nothing missing or doubled. */
export class JobEvents implements IDisposable {
  private _socket: ISocket | null = null;
  private _timer: ReturnType<typeof setTimeout> | null = null;
  private _failures = 0;
  private _attempt: string | null = null;
  private _seq = -1;
  private _ended = false;
  private _state: EventsState = 'connecting';
  private _disposed = false;
  private readonly _stateChanged = new Signal<this, EventsState>(this);

  /** @param open - opens a websocket to the job's events with this query. */
  constructor(
    private readonly open: (query: Record<string, string>) => ISocket,
    private readonly taker: IEventsTaker
  ) {}

  get state(): EventsState {
    return this._state;
  }

  get stateChanged(): ISignal<this, EventsState> {
    return this._stateChanged;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Begin, or begin again where it stopped. */
  start(): void {
    if (this._disposed || this._socket) {
      return;
    }
    const query: Record<string, string> =
      this._attempt === null ? {} : { attempt: this._attempt, after: String(this._seq) };
    const socket = (this._socket = this.open(query));
    socket.onmessage = event => {
      this._failures = 0;
      this._say('open');
      this._hear(JSON.parse(event.data) as IMessage);
    };
    socket.onclose = (event: ICloseEvent) => this._onClose(event);
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    abandon(this._socket);
    this._socket = null;
    if (this._timer !== null) {
      clearTimeout(this._timer);
    }
    Signal.clearData(this);
  }

  private _onClose(event: ICloseEvent): void {
    this._socket = null;
    if (this._ended) {
      return;
    }
    if (event.code === NO_SUCH_JOB) {
      this._say('unknown');
      return;
    }
    this._failures += 1;
    this._timer = setTimeout(() => this.start(), backoffMs(this._failures, Math.random()));
    this._say('lost');
  }

  private _hear(message: IMessage): void {
    if (message.type === 'job' && message.job) {
      const job = toJob(message.job);
      this._ended = isTerminal(job);
      this.taker.onJob(job);
      if (this._ended) {
        this._say('over');
      }
    } else if (message.type === 'attempt' && message.attempt !== undefined) {
      this._begin(message.attempt);
    } else if (message.type === 'events' && message.events) {
      this._take(message.events);
    }
  }

  private _begin(attempt: string): void {
    if (attempt === this._attempt) {
      return;
    }
    if (this._attempt !== null) {
      this.taker.onRestart();
    }
    this._attempt = attempt;
    this._seq = -1;
  }

  /** A joined event bears its last number, so one that reaches behind what was seen can't come: the server resumes by it. */
  private _take(events: readonly IJobEvent[]): void {
    const fresh = events.filter(event => event.seq > this._seq);
    const last = fresh[fresh.length - 1];
    if (last) {
      this._seq = last.seq;
      this.taker.onEvents(fresh);
    }
  }

  private _say(state: EventsState): void {
    if (state !== this._state && !this._disposed) {
      this._state = state;
      this._stateChanged.emit(state);
    }
  }
}
