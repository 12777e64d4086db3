import type { IJob } from '../api/types';
import { isTerminal } from '../api/types';
import { isLiveStatus } from '../words';

/** 'attach': the job lives. 'show': it ended, and its output is not in the cell. */
export type Offer = 'attach' | 'show';

/** What is known of a cell. Times are Unix seconds of the control plane's clock. */
export interface ICellFacts {
  /** This page executes the cell now, and shows what comes. */
  executing: boolean;
  /** When this page last executed it, by a kernel that has not been restarted since; null: never. */
  executedAt: number | null;
  /** The `text/plain` of each of its displays. */
  displays: readonly string[];
  /** Whether it has any output. */
  empty: boolean;
  /** When the notebook was saved last before this page loaded it; null: not known. */
  savedAt: number | null;
}

/** Clocks of a page and a control plane agree to about this. */
const SLACK_S = 2;

/** What to offer at a cell whose newest job is `job`, if anything. */
export function offerOf(job: IJob, cell: ICellFacts): Offer | null {
  if (cell.executing) {
    return null;
  }
  if (cell.executedAt !== null && job.submitted_at >= cell.executedAt - SLACK_S) {
    return null; // this page has shown it, or the person stopped it
  }
  if (!isTerminal(job)) {
    return 'attach';
  }
  if (cell.displays.some(text => isLiveStatus(text, job.id))) {
    return 'show'; // the page went away while it ran
  }
  const missed = cell.savedAt === null || (job.ended_at ?? 0) >= cell.savedAt - SLACK_S;
  return cell.empty && missed ? 'show' : null;
}

/** The newest job of each cell of a notebook, by the cell's id. */
export function newestByCell(
  jobs: readonly IJob[],
  isNotebook: (path: string) => boolean
): Map<string, IJob> {
  const newest = new Map<string, IJob>();
  for (const job of jobs) {
    if (job.cell_id && job.notebook && isNotebook(job.notebook)) {
      const known = newest.get(job.cell_id);
      if (!known || known.submitted_at < job.submitted_at) {
        newest.set(job.cell_id, job);
      }
    }
  }
  return newest;
}

/**
 * Whether an absolute path on the server is that of a notebook that is open here.
 *
 * @param absolute - as a job has it.
 * @param serverRoot - the server's root folder, as the page knows it: absolute, with `~`, or ''.
 * @param path - the notebook's, relative to that folder; a drive such as `RTC:` may stand before it.
 */
export function samePath(absolute: string, serverRoot: string, path: string): boolean {
  const local = path.replace(/^[^/]*:/, '').replace(/^\/+/, '');
  const whole = absolute.replace(/\\/g, '/');
  const root = serverRoot.replace(/\\/g, '/').replace(/\/+$/, '');
  if (root.startsWith('/') || /^[A-Za-z]:/.test(root)) {
    return whole === `${root}/${local}`;
  }
  const below = root.replace(/^~\/?/, '');
  return whole.endsWith(below ? `/${below}/${local}` : `/${local}`);
}
