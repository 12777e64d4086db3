import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IJob, IReason, State } from '../api/types';
import { isTerminal, TERMINAL } from '../api/types';
import { callsLine, failure, runningS, shortDuration, stateWord } from '../words';
import type { IPartProps } from './common';
import { Action, Name, Section, StateSign, When } from './common';

/** What can be done with a job. */
export interface IJobActions {
  open: (job: IJob) => void;
  cancel: (job: IJob) => void;
}

interface IJobsProps extends IPartProps {
  jobs: readonly IJob[];
  actions: IJobActions;
}

/** Of longer lists the newest are shown: a panel is no archive. */
const SHOWN = 100;

/** The jobs, newest first: those that live, or all. */
export function Jobs(props: IJobsProps): JSX.Element {
  const { trans, jobs } = props;
  const [all, setAll] = React.useState(true);
  const wanted = all ? jobs : jobs.filter(job => !isTerminal(job));
  const left = wanted.length - SHOWN;
  return (
    <Section
      name="jobs"
      title={trans.__('Jobs')}
      aside={<Filter all={all} onChange={setAll} trans={trans} />}
    >
      <ul className="gpulayer-List">
        {wanted.slice(0, SHOWN).map(job => (
          <Job key={job.id} {...props} job={job} />
        ))}
      </ul>
      {left > 0 && <p className="gpulayer-Empty">{trans.__('and %1 more', left)}</p>}
      {wanted.length === 0 && (
        <p className="gpulayer-Empty">
          {jobs.length > 0
            ? trans.__('Nothing is running.')
            : trans.__(
                'No job yet. Begin a cell with %%gpulayer, and it runs on one of these machines.'
              )}
        </p>
      )}
    </Section>
  );
}

function Filter(props: {
  all: boolean;
  onChange: (all: boolean) => void;
  trans: TranslationBundle;
}): JSX.Element {
  const choice = (all: boolean, label: string): JSX.Element => (
    <button
      type="button"
      className="gpulayer-Filter"
      data-filter={all ? 'all' : 'running'}
      aria-pressed={props.all === all}
      onClick={() => props.onChange(all)}
    >
      {label}
    </button>
  );
  return (
    <span role="group" aria-label={props.trans.__('Which jobs are shown')}>
      {choice(false, props.trans.__('running'))}
      <span aria-hidden="true"> · </span>
      {choice(true, props.trans.__('all'))}
    </span>
  );
}

function Job(props: IJobsProps & { job: IJob }): JSX.Element {
  const { job, trans, now, actions } = props;
  const [why, setWhy] = React.useState(false);
  const waits = job.reasons.length > 0;
  const label = `${job.id}, ${job.name}, ${trans.__(stateWord(job))}`;
  return (
    <li className="gpulayer-Job" data-job={job.id} data-state={job.state}>
      <div className="gpulayer-Job-row">
        <StateSign job={job} trans={trans} />
        <button
          type="button"
          className="gpulayer-Job-open"
          data-action="open-job"
          aria-label={trans.__('Open the output of job %1', label)}
          onClick={() => actions.open(job)}
        >
          <span className="gpulayer-Job-id">{job.id}</span>
          <Name text={job.name} title={job.command || job.name} />
        </button>
        <span className="gpulayer-Job-more">
          {counts(job).total < 2 && (
            <Name className="gpulayer-Job-where" text={where(job, trans)} />
          )}
          <Tasks job={job} trans={trans} />
          {waits && (
            <Action
              name="why"
              label={trans.__('why?')}
              title={trans.__('Why job %1 has no machine', job.id)}
              expanded={why}
              onClick={() => setWhy(!why)}
            />
          )}
          {!isTerminal(job) && !job.cancelling && (
            <Action
              name="cancel-job"
              label={trans.__('Cancel job %1', job.id)}
              onClick={() => actions.cancel(job)}
            >
              {trans.__('cancel')}
            </Action>
          )}
          <JobTime job={job} now={now} />
        </span>
      </div>
      {job.state === 'failed' && failure(job) && (
        <p className="gpulayer-Note" title={failure(job)}>
          {failure(job)}
        </p>
      )}
      {waits && why && <Why reasons={job.reasons} nearest={job.nearest} trans={trans} />}
    </li>
  );
}

/** Of a job with many tasks, or of a function: how many of its tasks, or calls, are over. */
function Tasks(props: { job: IJob; trans: TranslationBundle }): JSX.Element | null {
  const { over, total } = counts(props.job);
  if (total < 2) {
    return null;
  }
  const label = props.job.calls
    ? props.trans.__('%1 of %2 calls are over', over, total)
    : props.trans.__('%1 of %2 tasks are over', over, total);
  return (
    <span className="gpulayer-Tasks" title={states(props.job)}>
      {props.trans.__('%1 of %2', over, total)}
      <progress max={total} value={over} aria-label={label} />
    </span>
  );
}

/** How many tasks, or calls, a job has, and how many of them are over. */
export function counts(job: IJob): { over: number; total: number } {
  if (job.calls) {
    return { over: job.calls.done + job.calls.dropped, total: job.calls.calls };
  }
  const tasks = Object.entries(job.tasks) as [State, number][];
  const sum = (these: [State, number][]): number => these.reduce((all, [, n]) => all + n, 0);
  return { over: sum(tasks.filter(([state]) => TERMINAL.has(state))), total: sum(tasks) };
}

function states(job: IJob): string {
  if (job.calls) {
    return callsLine(job);
  }
  return Object.entries(job.tasks)
    .map(([state, n]) => `${n} ${state}`)
    .join(', ');
}

function where(job: IJob, trans: TranslationBundle): string {
  if (job.worker && job.state !== 'queued') {
    return job.worker;
  }
  return trans.__(stateWord(job));
}

function JobTime(props: { job: IJob; now: number }): JSX.Element {
  const { job, now } = props;
  if (job.ended_at !== null) {
    return <When at={job.ended_at} now={now} />;
  }
  const since = new Date((job.started_at ?? job.submitted_at) * 1000);
  return (
    <time className="gpulayer-When" dateTime={since.toISOString()} title={since.toLocaleString()}>
      {shortDuration(runningS(job, now))}
    </time>
  );
}

/** Per machine, what keeps the job from it: the nearest miss first. */
export function Why(props: {
  reasons: readonly IReason[];
  nearest: string;
  trans: TranslationBundle;
}): JSX.Element {
  const { nearest, trans } = props;
  return (
    <table className="gpulayer-Why">
      {nearest && <caption>{trans.__('What would help: %1', nearest)}</caption>}
      <thead>
        <tr>
          <th scope="col">{trans.__('machine')}</th>
          <th scope="col">{trans.__('why not there')}</th>
        </tr>
      </thead>
      <tbody>
        {nearestFirst(props.reasons).map(({ worker, reasons }) => (
          <tr key={worker}>
            <th scope="row">
              <Name text={worker || trans.__('any')} />
            </th>
            <td>
              {reasons.map(reason => (
                <div key={reason.code + reason.text}>
                  {reason.text}
                  {reason.temporary && (
                    <span className="gpulayer-Muted"> · {trans.__('for now')}</span>
                  )}
                </div>
              ))}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Machines with only passing reasons first, then those with fewer reasons. */
export function nearestFirst(
  reasons: readonly IReason[]
): { worker: string; reasons: IReason[] }[] {
  const byWorker = new Map<string, IReason[]>();
  for (const reason of reasons) {
    byWorker.set(reason.worker, [...(byWorker.get(reason.worker) ?? []), reason]);
  }
  const lasting = (these: IReason[]): number => these.filter(reason => !reason.temporary).length;
  return [...byWorker]
    .map(([worker, these]) => ({ worker, reasons: these }))
    .sort((a, b) => lasting(a.reasons) - lasting(b.reasons) || a.reasons.length - b.reasons.length);
}
