import type { IError } from '@jupyterlab/nbformat';

import type { IJob } from '../api/types';
import { programEnd, reasonLines } from '../words';
import { errorOutput } from './outputs';

type Content = Record<string, unknown>;

/** What the kernel raised, and whether people see it already. */
export interface IRaised {
  ename: string;
  evalue: string;
  traceback: string[];
  shown: boolean;
}

/**
 * The errors of an attempt, as `gpulayer/notebook/replay.py` keeps them: the last one may be the cell's end, and is
 * shown there; one that something follows was not, and is shown where it came.
 */
export class Errors {
  private _all: IRaised[] = [];
  private _ended: IRaised | null = null;

  /** @param show - shows an error where the output is now. */
  constructor(private readonly show: (error: IError) => void) {}

  /** What ended the cell, as far as is known. */
  get ended(): IRaised | null {
    return this._ended;
  }

  /** Another attempt begins. */
  forget(): void {
    this._all = [];
    this._ended = null;
  }

  /** The kernel says that something was raised. */
  add(content: Content): void {
    this.pass();
    const raised: IRaised = {
      ename: text(content['ename']),
      evalue: text(content['evalue']),
      traceback: (content['traceback'] as string[] | undefined) ?? [],
      shown: false
    };
    this._all.push(raised);
    this._ended = raised;
  }

  /** Something follows: show the last error, if it is not yet. */
  pass(): void {
    const last = this._all[this._all.length - 1];
    if (last && !last.shown) {
      last.shown = true;
      this.show(errorOutput(last.ename, last.evalue, last.traceback));
    }
  }

  /** How the kernel says that the cell ended: what %tb and %run show is no error of the cell's. */
  reply(reply: Content): void {
    if (reply['status'] === 'ok') {
      this.pass();
      this._ended = null;
      return;
    }
    const named = this._all.filter(raised => raised.ename === reply['ename']);
    let ended = named[named.length - 1] ?? this._ended;
    if (reply['ename'] === 'UsageError') {
      // IPython says it in one line on stderr
      ended = { ename: 'UsageError', evalue: text(reply['evalue']), traceback: [], shown: true };
    }
    if (ended !== this._ended) {
      this.pass();
      this._ended = ended;
    }
  }
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

/**
 * What a cell shows last when its job has ended: nothing if it went well, else what the magic would raise there
 * (`judge` in `gpulayer/notebook/cellrun.py`).
 */
export function verdict(job: IJob, raised: IRaised | null): IError | null {
  if (job.state === 'succeeded') {
    return null;
  }
  if (job.state === 'rejected') {
    const line = 'no eligible worker';
    return errorOutput('JobRejected', line, [`gpulayer: ${line}`, ...reasonLines(job)]);
  }
  if (raised && !job.outcome?.problem) {
    return raised.shown ? null : errorOutput(raised.ename, raised.evalue, raised.traceback);
  }
  const before = raised && !raised.shown ? raised.traceback : [];
  const line = lineOf(job);
  const ename = job.state === 'cancelled' ? 'JobCancelled' : 'JobError';
  return errorOutput(ename, line, [...before, `gpulayer: ${line}`, ...lastLines(job)]);
}

function lineOf(job: IJob): string {
  const why = job.outcome?.problem || job.outcome?.error || programEnd(job.outcome);
  if (job.state === 'cancelled') {
    return `job ${job.id} was cancelled${why ? `: ${why}` : ''}`;
  }
  return `job ${job.id} failed on ${job.worker}: ${why || 'no reason was given'}`;
}

function lastLines(job: IJob): string[] {
  const tail = job.kind === 'cell' ? job.outcome?.tail : ''; // a command's own words stand there already
  return tail ? ['the last lines of its process:', ...tail.trimEnd().split('\n').slice(-16)] : [];
}
