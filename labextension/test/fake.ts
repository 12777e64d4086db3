import type { TranslationBundle } from '@jupyterlab/translation';

import type { ISocket } from '../src/api/socket';

/** A websocket without a network; the test is its server. */
export class FakeSocket implements ISocket {
  onopen: ISocket['onopen'] = null;
  onmessage: ISocket['onmessage'] = null;
  onclose: ISocket['onclose'] = null;
  closed = false;

  constructor(readonly query: Record<string, string> = {}) {}

  close(): void {
    this.closed = true;
  }

  /** The server says something. */
  say(message: unknown): void {
    this.onmessage?.({ data: JSON.stringify(message) } as MessageEvent<string>);
  }

  /** The server, or the network, ends it. */
  drop(code = 1006): void {
    this.onclose?.({ code, reason: '' });
  }
}

/** All sockets that were opened, the last one at hand. */
export class Sockets {
  readonly all: FakeSocket[] = [];

  readonly open = (query?: Record<string, string>): FakeSocket => {
    const socket = new FakeSocket(query);
    this.all.push(socket);
    return socket;
  };

  get last(): FakeSocket {
    return this.all[this.all.length - 1] as FakeSocket;
  }
}

function filled(text: string, args: unknown[]): string {
  return text.replace(/%(\d)/g, (_, n: string) => String(args[Number(n) - 1]));
}

/** English, as it stands in the code. */
export const trans = {
  __: (text: string, ...args: unknown[]) => filled(text, args),
  _n: (one: string, many: string, n: number, ...args: unknown[]) =>
    filled(n === 1 ? one : many, [n, ...args])
} as unknown as TranslationBundle;
