import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';

import type { EventsState } from '../api/events';
import type { IJob } from '../api/types';
import { Boundary } from '../panel/boundary';
import { Action, StateSign } from '../panel/common';
import { stateWord } from '../words';
import type { Offer } from './offer';

/** What a bar says. */
export interface IBar {
  job: IJob;
  /** 'attached': the job's output comes into the cell. */
  mode: Offer | 'attached';
  /** How the connection is, while attached. */
  link?: EventsState;
}

/** What can be done from a bar. */
export interface IBarActions {
  attach: () => void;
  detach: () => void;
  dismiss: () => void;
}

/** The line between a cell's input and its output that offers what the page has missed. */
export class CellBar extends ReactWidget {
  constructor(
    private _bar: IBar,
    private readonly actions: IBarActions,
    private readonly trans: TranslationBundle
  ) {
    super();
    this.addClass('gpulayer-CellBar');
    // Enter on a button here is the button's, not the notebook's
    this.node.setAttribute('data-lm-suppress-shortcuts', 'true');
    this.node.setAttribute('role', 'status');
    this._mark();
  }

  /** What it says. */
  get bar(): IBar {
    return this._bar;
  }

  set bar(bar: IBar) {
    const old = this._bar;
    if (bar.job !== old.job || bar.mode !== old.mode || bar.link !== old.link) {
      this._bar = bar;
      this._mark();
      this.update();
    }
  }

  protected override render(): JSX.Element {
    const { trans } = this;
    const { job, mode } = this._bar;
    return (
      <Boundary trans={trans}>
        <StateSign job={job} trans={trans} />
        <span className="gpulayer-CellBar-text">{this._text()}</span>
        {mode === 'attached' ? (
          <Action
            name="detach"
            label={trans.__('detach')}
            title={trans.__('Stop showing it here; the job goes on')}
            onClick={this.actions.detach}
          />
        ) : (
          <>
            <Action
              name={mode}
              label={mode === 'attach' ? trans.__('attach') : trans.__('show its output')}
              title={trans.__('Put all of its output into this cell')}
              onClick={this.actions.attach}
            />
            <Action
              name="dismiss"
              label={trans.__('do not offer it here')}
              onClick={this.actions.dismiss}
            >
              <span aria-hidden="true">✕</span>
            </Action>
          </>
        )}
      </Boundary>
    );
  }

  private _text(): string {
    const { trans } = this;
    const { job, mode, link } = this._bar;
    if (mode === 'attached') {
      return link === 'lost'
        ? trans.__('attached to job %1: connection lost, trying again…', job.id)
        : trans.__('attached to job %1', job.id);
    }
    const word = trans.__(stateWord(job));
    return job.worker && mode === 'attach'
      ? trans.__('job %1 is %2 on %3', job.id, word, job.worker)
      : trans.__('job %1 is %2', job.id, word);
  }

  private _mark(): void {
    this.node.dataset['job'] = this._bar.job.id;
    this.node.dataset['mode'] = this._bar.mode;
  }
}
