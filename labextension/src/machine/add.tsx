import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IToken } from '../api/types';
import { Action } from '../panel/common';
import type { IGpulayer } from '../tokens';
import { countdown, joinLine, onlyHere } from './join';

/** What of the client is used here. */
export type JoinClient = Pick<IGpulayer, 'makeToken' | 'tokens' | 'joinUrl' | 'watch'>;

interface IAddProps {
  client: JoinClient;
  trans: TranslationBundle;
  copy?: (text: string) => Promise<void>;
}

/** The join line, how long its token holds, and the moment when the machine arrives. */
export function AddMachine(props: IAddProps): JSX.Element {
  const { client, trans } = props;
  const [token, setToken] = React.useState<IToken | null>(null);
  const [error, setError] = React.useState('');
  const make = React.useCallback(() => {
    setError('');
    client.makeToken().then(setToken, (reason: unknown) => setError(lineOf(reason)));
  }, [client]);
  React.useEffect(make, [make]);
  const arrived = useArrival(client, token);
  const now = useNow(client);
  if (error) {
    return (
      <div className="gpulayer-AddMachine" data-state="error">
        <p role="alert">{trans.__('No token could be made: %1', error)}</p>
        <Action name="make-token" label={trans.__('try again')} onClick={make} />
      </div>
    );
  }
  if (arrived !== null) {
    return <Arrived name={arrived} trans={trans} onMore={make} />;
  }
  if (!token) {
    return <div className="gpulayer-AddMachine" data-state="making" aria-busy="true" />;
  }
  const left = token.expires_at === null ? Infinity : token.expires_at - now;
  const url = client.joinUrl();
  return (
    <div className="gpulayer-AddMachine" data-state={left <= 0 ? 'over' : 'waiting'}>
      <p>{trans.__('Paste this line on the machine. It needs Python and gpulayer there:')}</p>
      <Line text={joinLine(url, token.token ?? '')} trans={trans} copy={props.copy} />
      {onlyHere(url) && (
        <p className="gpulayer-Muted">
          {trans.__(
            'This address is reached from this computer only. For another machine open Jupyter under a name that it can reach, or put that name in the line.'
          )}
        </p>
      )}
      <Countdown left={left} trans={trans} onMore={make} />
    </div>
  );
}

function Arrived(props: {
  name: string;
  trans: TranslationBundle;
  onMore: () => void;
}): JSX.Element {
  const { name, trans, onMore } = props;
  return (
    <div className="gpulayer-AddMachine" data-state="arrived">
      <p role="status">
        <span className="gpulayer-State" data-look="succeeded" aria-hidden="true">
          ✓
        </span>{' '}
        {trans.__('%1 is here.', name)}
      </p>
      <Action name="make-token" label={trans.__('add another')} onClick={onMore} />
    </div>
  );
}

function Countdown(props: {
  left: number;
  trans: TranslationBundle;
  onMore: () => void;
}): JSX.Element {
  const { left, trans, onMore } = props;
  if (left <= 0) {
    return (
      <p role="status">
        {trans.__('The token has expired.')}{' '}
        <Action name="make-token" label={trans.__('make another')} onClick={onMore} />
      </p>
    );
  }
  return (
    <p className="gpulayer-Muted" role="timer">
      {left < Infinity && trans.__('It holds for one machine and %1 min.', countdown(left))}{' '}
      {trans.__('Waiting for it…')}
    </p>
  );
}

function Line(props: {
  text: string;
  trans: TranslationBundle;
  copy?: (text: string) => Promise<void>;
}): JSX.Element {
  const { text, trans } = props;
  const [said, setSaid] = React.useState('');
  const copy = props.copy ?? ((line: string) => navigator.clipboard.writeText(line));
  return (
    <div className="gpulayer-JoinLine">
      <textarea
        readOnly
        rows={2}
        spellCheck={false}
        value={text}
        aria-label={trans.__('The line to paste')}
        onFocus={event => event.target.select()}
      />
      <Action
        name="copy"
        label={trans.__('copy')}
        onClick={() =>
          void copy(text).then(
            () => setSaid(trans.__('copied')),
            () => setSaid(trans.__('select it and copy it by hand'))
          )
        }
      />
      <span className="gpulayer-Muted" role="status">
        {said}
      </span>
    </div>
  );
}

/** The name of the machine that came with this token, once it is there. */
function useArrival(client: JoinClient, token: IToken | null): string | null {
  const [arrived, setArrived] = React.useState<string | null>(null);
  React.useEffect(() => {
    setArrived(null);
    if (!token) {
      return;
    }
    let over = false;
    const { watch } = client;
    const looking = watch.look();
    let workers: readonly unknown[] = watch.fleet.workers;
    const look = (): void => {
      void client.tokens().then(
        tokens => {
          const name = tokens.find(each => each.id === token.id)?.used_by;
          if (!over && name && watch.fleet.workers.some(it => it.name === name && it.connected)) {
            setArrived(name);
          }
        },
        () => {
          workers = []; // the next change asks again, whatever it is
        }
      );
    };
    const onChange = (): void => {
      if (watch.fleet.workers !== workers) {
        workers = watch.fleet.workers;
        look();
      }
    };
    watch.changed.connect(onChange);
    return () => {
      over = true;
      watch.changed.disconnect(onChange);
      looking.dispose();
    };
  }, [client, token]);
  return arrived;
}

function useNow(client: JoinClient): number {
  const [now, setNow] = React.useState(client.watch.now());
  React.useEffect(() => {
    const ticking = setInterval(() => setNow(client.watch.now()), 1000);
    return () => clearInterval(ticking);
  }, [client]);
  return now;
}

function lineOf(reason: unknown): string {
  return reason instanceof Error ? reason.message : String(reason);
}
