import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { EventsState } from '../api/events';
import type { IJob } from '../api/types';
import { isTerminal } from '../api/types';
import { Action, Name, StateSign } from '../panel/common';
import { deviceName, duration, failure, peak, runningS, stateWord } from '../words';

export interface IJobHeaderProps {
  /** The job's id, known before anything else is. */
  id: string;
  job: IJob | null;
  state: EventsState;
  /** Whether the newest output stays in view. */
  following: boolean;
  now: number;
  trans: TranslationBundle;
  onCancel: () => void;
  onFollow: () => void;
}

/** The line over a job's output: what it is, where, since when, and what can be done. */
export function JobHeader(props: IJobHeaderProps): JSX.Element {
  const { id, job, trans } = props;
  const why = job && isTerminal(job) ? failure(job) : '';
  return (
    <div className="gpulayer-JobHeader" data-job={id} data-state={job?.state ?? ''}>
      <div className="gpulayer-JobHeader-line">
        {job && <StateSign job={job} trans={trans} />}
        <strong className="gpulayer-Job-id">{id}</strong>
        <Name text={job?.name ?? ''} />
        <span className="gpulayer-Figures">{job ? figures(job, props.now, trans) : ''}</span>
        <Buttons {...props} />
      </div>
      <Trouble {...props} />
      {why && <p className="gpulayer-Note">{why}</p>}
    </div>
  );
}

function Buttons(props: IJobHeaderProps): JSX.Element {
  const { job, trans, following } = props;
  return (
    <>
      {!following && (
        <Action name="follow" label={trans.__('follow the newest output')} onClick={props.onFollow}>
          {trans.__('↓ follow')}
        </Action>
      )}
      {job && !isTerminal(job) && !job.cancelling && (
        <Action
          name="cancel-job"
          label={trans.__('Cancel job %1', job.id)}
          onClick={props.onCancel}
        >
          {trans.__('cancel')}
        </Action>
      )}
    </>
  );
}

function Trouble(props: IJobHeaderProps): JSX.Element | null {
  const { trans, state, id } = props;
  const words: Partial<Record<EventsState, string>> = {
    connecting: trans.__('Asking for the output…'),
    lost: trans.__('Connection lost, trying again…'),
    unknown: trans.__('There is no job %1 any more.', id)
  };
  const said = words[state];
  return said === undefined ? null : (
    <p className="gpulayer-Muted" role="status">
      {said}
    </p>
  );
}

function figures(job: IJob, now: number, trans: TranslationBundle): string {
  const clock = (at: number): string => new Date(at * 1000).toLocaleTimeString();
  const began = clock(job.started_at ?? job.submitted_at);
  return [
    trans.__(stateWord(job)),
    job.worker ?? '',
    ...job.devices.slice(0, 1).map(deviceName),
    job.ended_at === null ? trans.__('since %1', began) : `${began} – ${clock(job.ended_at)}`,
    duration(runningS(job, now)),
    peak(job) ? trans.__('peak %1', peak(job)) : ''
  ]
    .filter(Boolean)
    .join(' · ');
}
