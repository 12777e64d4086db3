import React from 'react';

import type { ISession } from '../api/types';
import { deviceName, shortDuration } from '../words';
import type { IPartProps } from './common';
import { Action, Name, Section } from './common';

interface ISessionsProps extends IPartProps {
  sessions: readonly ISession[];
  onRelease: (session: ISession) => void;
}

/** The sessions: kernels that are kept between cells, with their devices. */
export function Sessions(props: ISessionsProps): JSX.Element {
  const { trans, sessions } = props;
  return (
    <Section name="sessions" title={trans.__('Sessions')}>
      <ul className="gpulayer-List">
        {sessions.map(session => (
          <Session key={session.id} {...props} session={session} />
        ))}
      </ul>
      {sessions.length === 0 && (
        <p className="gpulayer-Empty">{trans.__('None is open: each cell starts fresh.')}</p>
      )}
    </Section>
  );
}

function Session(props: ISessionsProps & { session: ISession }): JSX.Element {
  const { session, trans } = props;
  const device = session.devices[0];
  const place = [session.worker, device ? deviceName(device) : ''].filter(Boolean).join(' · ');
  return (
    <li className="gpulayer-Job" data-session={session.name}>
      <div className="gpulayer-Job-row">
        <Sign {...props} />
        <span className="gpulayer-Job-open">
          <Name text={session.name} />
        </span>
        <span className="gpulayer-Job-more">
          <Name className="gpulayer-Job-where" text={place} />
          <Action
            name="release-session"
            label={trans.__('Release session %1', session.name)}
            title={trans.__('End session %1 and free its devices', session.name)}
            onClick={() => props.onRelease(session)}
          >
            {trans.__('release')}
          </Action>
          <Doing {...props} />
        </span>
      </div>
    </li>
  );
}

function Sign(props: ISessionsProps & { session: ISession }): JSX.Element {
  const { session, trans } = props;
  const look = !session.connected ? 'unreachable' : session.running ? 'running' : 'idle';
  const word = {
    unreachable: trans.__('out of reach'),
    running: trans.__('running'),
    idle: trans.__('idle')
  };
  const sign = { unreachable: '◌', running: '●', idle: '○' };
  return (
    <span
      className="gpulayer-State"
      data-look={look}
      role="img"
      aria-label={word[look]}
      title={word[look]}
    >
      {sign[look]}
    </span>
  );
}

function Doing(props: ISessionsProps & { session: ISession }): JSX.Element {
  const { session, trans, now } = props;
  const idle = session.idle_since === null ? 0 : now - session.idle_since;
  const left = shortDuration(session.idle_timeout_s - idle);
  return (
    <span
      className="gpulayer-When"
      title={session.running ? undefined : trans.__('It ends by itself in %1', left)}
    >
      {session.running
        ? trans.__('running %1', session.running)
        : trans.__('idle %1', shortDuration(idle))}
    </span>
  );
}
