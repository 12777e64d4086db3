/** The one line that makes a machine a worker. */
export function joinLine(url: string, token: string): string {
  return `gpulayer-worker join ${url} --token ${token}`;
}

/** Whether other machines can't reach this address. */
export function onlyHere(url: string): boolean {
  const host = new URL(url).hostname;
  return host === 'localhost' || host === '[::1]' || host.startsWith('127.');
}

/** '9:05'. */
export function countdown(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  return `${Math.trunc(whole / 60)}:${String(whole % 60).padStart(2, '0')}`;
}
