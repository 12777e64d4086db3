import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IServerStatus } from '../api/types';
import type { Link } from '../api/watch';
import { VERSION } from '../version';
import { Action } from './common';

interface IBannersProps {
  link: Link;
  /** The control plane's version; '' before its first word. */
  plane: string;
  status: IServerStatus | null;
  trans: TranslationBundle;
  onRetry: () => void;
}

/** What stands between a person and a live panel, and what mends it. */
export function Banners(props: IBannersProps): JSX.Element {
  const { trans } = props;
  const trouble = troubleOf(props);
  const skew = skewOf(props);
  return (
    <>
      {trouble && (
        <div className="gpulayer-Banner" data-kind={trouble.kind} role="status">
          <p>{trouble.title}</p>
          {trouble.text && <p className="gpulayer-Banner-detail">{trouble.text}</p>}
          {trouble.kind !== 'starting' && (
            <Action name="retry" label={trans.__('try now')} onClick={props.onRetry} />
          )}
        </div>
      )}
      {skew && (
        <div className="gpulayer-Banner" data-kind="version" role="status">
          <p>{skew}</p>
          <code>pip install --upgrade gpulayer</code>
        </div>
      )}
    </>
  );
}

interface ITrouble {
  kind: 'starting' | 'lost' | 'error';
  title: string;
  text: string;
}

function troubleOf(props: IBannersProps): ITrouble | null {
  const { link, status, plane, trans } = props;
  if (link === 'open' || link === 'off') {
    return null;
  }
  const text = status?.text ?? '';
  switch (status?.state) {
    case 'missing':
      return {
        kind: 'error',
        title: trans.__('The Jupyter server has no GPUlayer extension.'),
        text: trans.__(
          'Install gpulayer where Jupyter runs, see that "jupyter server extension list" shows gpulayer_jupyter, and restart Jupyter.'
        )
      };
    case 'failed':
      return { kind: 'error', title: trans.__('The control plane does not answer.'), text };
    case 'starting':
      return { kind: 'starting', title: trans.__('Starting the control plane…'), text };
    case 'away':
      return { kind: 'lost', title: trans.__('Jupyter does not answer, trying again…'), text: '' };
    default:
      return link === 'connecting' && !plane
        ? { kind: 'starting', title: trans.__('Connecting…'), text: '' }
        : { kind: 'lost', title: trans.__('Connection lost, trying again…'), text: '' };
  }
}

function skewOf(props: IBannersProps): string | null {
  const { status, plane, trans } = props;
  const server = status?.version;
  if (server && server !== VERSION) {
    return trans.__(
      'This page has GPUlayer %1, the Jupyter server %2. Reload the page; if that does not help, update and restart Jupyter:',
      VERSION,
      server
    );
  }
  if (plane && plane !== VERSION) {
    return trans.__(
      'This page has GPUlayer %1, the control plane %2. Update the older of them and restart it:',
      VERSION,
      plane
    );
  }
  return null;
}
