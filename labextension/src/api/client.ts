import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { BASE, openSocket, RequestError, requestAPI } from './request';
import type { ISocket } from './socket';
import type { IServerStatus, IToken } from './types';
import { Watch } from './watch';

/** How long a token for a machine holds. */
const TOKEN_S = 600;

/** All that this page asks of the control plane, by way of the Jupyter server. */
export class Client implements IDisposable {
  /** Machines, jobs and sessions, live. */
  readonly watch: Watch;

  private _status: IServerStatus | null = null;
  private _asking = false;
  private readonly _statusChanged = new Signal<this, void>(this);

  constructor(private readonly settings: ServerConnection.ISettings) {
    this.watch = new Watch(() => openSocket('v1/watch', settings));
    this.watch.lost.connect(() => void this.askStatus());
    this.watch.changed.connect(this._onWatch, this);
  }

  /** How the Jupyter server stands to the control plane; null before its first word. */
  get status(): IServerStatus | null {
    return this._status;
  }

  /** The status is another. */
  get statusChanged(): ISignal<this, void> {
    return this._statusChanged;
  }

  get isDisposed(): boolean {
    return this.watch.isDisposed;
  }

  dispose(): void {
    this.watch.dispose();
    Signal.clearData(this);
  }

  /** Ask the Jupyter server how it stands; never fails: no answer is a status too. */
  async askStatus(): Promise<void> {
    if (this._asking) {
      return;
    }
    this._asking = true;
    try {
      this._status = await requestAPI<IServerStatus>('status', this.settings);
    } catch (error) {
      const code = error instanceof RequestError ? error.status : 0;
      const text = error instanceof Error ? error.message : String(error);
      const state = code === 404 ? 'missing' : code === 0 ? 'away' : 'failed';
      this._status = { version: '', url: null, text, state };
    } finally {
      this._asking = false;
    }
    if (!this.isDisposed) {
      this._statusChanged.emit();
    }
  }

  /** Opens a websocket to a job's events. */
  events(job: string): (query: Record<string, string>) => ISocket {
    const path = `v1/jobs/${encodeURIComponent(job)}/events`;
    return query => openSocket(path, this.settings, query);
  }

  /** Cancel a job; it says 'cancelling' until its machine confirms. */
  async cancel(job: string): Promise<void> {
    await this._send(`v1/jobs/${encodeURIComponent(job)}/cancel`, 'POST', {});
  }

  /** End a session; its devices are free when its processes are gone. */
  async release(session: string): Promise<void> {
    await this._send(`v1/sessions/${encodeURIComponent(session)}`, 'DELETE');
  }

  /** Make a token with which one machine can join. */
  async makeToken(): Promise<IToken> {
    const wanted = { role: 'join', expires_s: TOKEN_S, single_use: true };
    return this._send<IToken>('v1/tokens', 'POST', wanted);
  }

  /** The tokens there are, without their secrets. */
  async tokens(): Promise<IToken[]> {
    return requestAPI<IToken[]>('v1/tokens', this.settings);
  }

  /** Void a token. */
  async dropToken(id: string): Promise<void> {
    await this._send(`v1/tokens/${encodeURIComponent(id)}`, 'DELETE');
  }

  /** Where a machine joins: Jupyter's own address, or a remote control plane's. */
  joinUrl(): string {
    const remote = this._status?.state === 'remote' ? this._status.url : null;
    return (remote ?? this.settings.baseUrl.replace(/\/+$/, '') + '/' + BASE).replace(/\/+$/, '');
  }

  private _send<T>(path: string, method: string, body?: unknown): Promise<T> {
    const init: RequestInit = { method };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
    }
    return requestAPI<T>(path, this.settings, init);
  }

  private _onWatch(): void {
    if (this.watch.link === 'open' && this._status === null) {
      void this.askStatus();
    } else if (this.watch.link === 'open' && this._late()) {
      void this.askStatus(); // what it said while the connection was lost holds no longer
    }
  }

  private _late(): boolean {
    return ['starting', 'failed', 'missing', 'away'].includes(this._status?.state ?? '');
  }
}
