const FIRST_MS = 250;
const LONGEST_MS = 10_000;

/**
 * How long to wait before the next try, with jitter, so that many pages do not come back at once.
 *
 * @param failures - tries that failed in a row, at least 1.
 * @param random - a number from 0 to 1.
 */
export function backoffMs(failures: number, random: number): number {
  const whole = Math.min(LONGEST_MS, FIRST_MS * 2 ** (failures - 1));
  return whole * (0.5 + random / 2);
}
