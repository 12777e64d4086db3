import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IJob, IServerStatus, ISession } from '../api/types';
import type { IFleet, Link } from '../api/watch';
import { Banners } from './banners';
import { Boundary } from './boundary';
import { Action } from './common';
import { Jobs } from './jobs';
import { Machines } from './machines';
import { Sessions } from './sessions';

/** What a person can do from the panel. */
export interface IPanelActions {
  addMachine: () => void;
  refresh: () => void;
  openJob: (job: IJob) => void;
  cancelJob: (job: IJob) => void;
  releaseSession: (session: ISession) => void;
}

export interface IPanelProps {
  fleet: IFleet;
  link: Link;
  status: IServerStatus | null;
  /** Unix seconds of the control plane's clock. */
  now: number;
  trans: TranslationBundle;
  actions: IPanelActions;
}

/** Machines, jobs and sessions, live. It draws what it is given and knows nothing of connections. */
export function Panel(props: IPanelProps): JSX.Element {
  const { fleet, link, status, now, trans, actions } = props;
  const part = { trans, now };
  return (
    <div className="gpulayer-Panel-content" data-link={link}>
      <header className="gpulayer-Panel-header">
        <h1>GPUlayer</h1>
        <Action name="refresh" label={trans.__('Connect anew')} onClick={actions.refresh}>
          <span aria-hidden="true">⟳</span>
        </Action>
        <Action name="add" label={trans.__('Add a machine')} onClick={actions.addMachine}>
          <span aria-hidden="true">+</span>
        </Action>
      </header>
      <Banners
        link={link}
        plane={fleet.version}
        status={status}
        trans={trans}
        onRetry={actions.refresh}
      />
      {fleet.version && (
        <>
          <Boundary trans={trans}>
            <Machines
              {...part}
              workers={fleet.workers}
              jobs={fleet.jobs}
              onAdd={actions.addMachine}
            />
          </Boundary>
          <Boundary trans={trans}>
            <Jobs
              {...part}
              jobs={fleet.jobs}
              actions={{ open: actions.openJob, cancel: actions.cancelJob }}
            />
          </Boundary>
          <Boundary trans={trans}>
            <Sessions {...part} sessions={fleet.sessions} onRelease={actions.releaseSession} />
          </Boundary>
        </>
      )}
    </div>
  );
}
