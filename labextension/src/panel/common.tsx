import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IJob } from '../api/types';
import { ago, look, stateWord, symbol } from '../words';

/** What every part of the panel is given. */
export interface IPartProps {
  trans: TranslationBundle;
  /** Unix seconds of the control plane's clock. */
  now: number;
}

/** As many characters of a long name stay at its end: the number of a run, the suffix of a file. */
const END = 8;

/** A name that is cut in the middle where there is no room; whole on hover. */
export function Name(props: { text: string; className?: string; title?: string }): JSX.Element {
  const { text, className = '', title = text } = props;
  const cut = text.length > 2 * END ? text.length - END : text.length;
  return (
    <span className={`gpulayer-Name ${className}`} title={title}>
      <span className="gpulayer-Name-start">{text.slice(0, cut)}</span>
      <span className="gpulayer-Name-end">{text.slice(cut)}</span>
    </span>
  );
}

/** A job's state: a shape, a colour, and for those who see neither, the word. */
export function StateSign(props: { job: IJob; trans: TranslationBundle }): JSX.Element {
  const word = props.trans.__(stateWord(props.job));
  return (
    <span
      className="gpulayer-State"
      data-look={look(props.job)}
      role="img"
      aria-label={word}
      title={word}
    >
      {symbol(props.job)}
    </span>
  );
}

/** A point in time: relative, the absolute one on hover. */
export function When(props: { at: number; now: number }): JSX.Element {
  const at = new Date(props.at * 1000);
  return (
    <time className="gpulayer-When" dateTime={at.toISOString()} title={at.toLocaleString()}>
      {ago(props.now - props.at)}
    </time>
  );
}

/** A part of the panel with its heading. */
export function Section(props: {
  name: string;
  title: string;
  aside?: React.ReactNode;
  children: React.ReactNode;
}): JSX.Element {
  const id = `gpulayer-heading-${props.name}`;
  return (
    <section className="gpulayer-Section" data-section={props.name} aria-labelledby={id}>
      <header className="gpulayer-Section-header">
        <h2 id={id}>{props.title}</h2>
        <div className="gpulayer-Section-aside">{props.aside}</div>
      </header>
      {props.children}
    </section>
  );
}

/** A button that reads as a word. */
export function Action(props: {
  name: string;
  label: string;
  onClick: () => void;
  title?: string;
  expanded?: boolean;
  disabled?: boolean;
  children?: React.ReactNode;
}): JSX.Element {
  return (
    <button
      type="button"
      className="gpulayer-Action"
      data-action={props.name}
      aria-label={props.label}
      aria-expanded={props.expanded}
      title={props.title ?? props.label}
      disabled={props.disabled}
      onClick={event => {
        event.stopPropagation();
        props.onClick();
      }}
    >
      {props.children ?? props.label}
    </button>
  );
}
