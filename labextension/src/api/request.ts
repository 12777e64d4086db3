import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { ISocket } from './socket';

/** Where the server extension answers, under Jupyter's own base URL. */
export const BASE = 'gpulayer';

/** A request that was not done: the message is one line for people. */
export class RequestError extends Error {
  constructor(
    message: string,
    readonly status: number
  ) {
    super(message);
    this.name = 'RequestError';
  }
}

/**
 * Ask the server extension, with Jupyter's own authentication.
 *
 * @param path - below `gpulayer/`, such as `v1/workers`.
 * @returns what it answers; undefined where the answer has no body.
 * @throws RequestError with the problem's title and detail, or that nothing answers (status 0).
 */
export async function requestAPI<T>(
  path: string,
  settings: ServerConnection.ISettings,
  init: RequestInit = {}
): Promise<T> {
  let response: Response;
  try {
    const url = URLExt.join(settings.baseUrl, BASE, path);
    response = await ServerConnection.makeRequest(url, init, settings);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new RequestError(`The Jupyter server does not answer: ${why}`, 0);
  }
  const text = await response.text();
  if (!response.ok) {
    throw new RequestError(problemLine(text) ?? response.statusText, response.status);
  }
  return (text ? JSON.parse(text) : undefined) as T;
}

/** The line of a problem document (RFC 9457) or of Jupyter's own errors, if `text` is one. */
export function problemLine(text: string): string | null {
  try {
    const problem = JSON.parse(text) as { title?: string; detail?: string; message?: string };
    const title = problem.title ?? problem.message;
    return title ? (problem.detail ? `${title}: ${problem.detail}` : title) : null;
  } catch {
    return null; // not JSON, such as a proxy's page: the status line has to do
  }
}

/** A websocket to the server extension; Jupyter's cookie or token goes along. */
export function openSocket(
  path: string,
  settings: ServerConnection.ISettings,
  query: Record<string, string> = {}
): ISocket {
  const token: Record<string, string> =
    settings.appendToken && settings.token ? { token: settings.token } : {};
  const url =
    URLExt.join(settings.wsUrl, BASE, path) + URLExt.objectToQueryString({ ...query, ...token });
  return new settings.WebSocket(url) as unknown as ISocket;
}
