/** What of a websocket is used here; the browser's is one, and so is the tests' fake. */
export interface ISocket {
  onopen: ((event: never) => unknown) | null;
  onmessage: ((event: MessageEvent<string>) => unknown) | null;
  onclose: ((event: ICloseEvent) => unknown) | null;
  close(): void;
}

/** Why a websocket closed. */
export interface ICloseEvent {
  code: number;
  reason: string;
}

/** Let go of a socket: nothing that it still says is heard. */
export function abandon(socket: ISocket | null): void {
  if (socket) {
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }
}
