import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import React from 'react';

import { gpulayerIcon } from '../icon';
import type { IGpulayer } from '../tokens';
import { Commands } from '../tokens';
import { Boundary } from './boundary';
import type { IPanelActions } from './panel';
import { Panel } from './panel';

/** The id of the panel's widget, and so of its tab. */
export const PANEL_ID = 'gpulayer-panel';

/** How often times are shown anew. */
const TICK_MS = 1000;

/** The panel in the left sidebar. It looks at the fleet only while it can be seen. */
export class PanelWidget extends ReactWidget {
  private _looking: IDisposable | null = null;
  private _ticking: ReturnType<typeof setInterval> | null = null;
  private readonly _actions: IPanelActions;

  constructor(
    private readonly client: IGpulayer,
    commands: CommandRegistry,
    private readonly trans: TranslationBundle
  ) {
    super();
    this.id = PANEL_ID;
    this.addClass('gpulayer-Panel');
    this.title.icon = gpulayerIcon;
    this.title.caption = trans.__('GPUlayer: machines, jobs, sessions');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'GPUlayer');
    this._actions = {
      addMachine: () => void commands.execute(Commands.addMachine),
      refresh: () => void commands.execute(Commands.refresh),
      openJob: job => void commands.execute(Commands.openJob, { job: job.id }),
      cancelJob: job => void commands.execute(Commands.cancelJob, { job: job.id }),
      releaseSession: session =>
        void commands.execute(Commands.releaseSession, { session: session.name })
    };
    client.watch.changed.connect(this._onChange, this);
    client.statusChanged.connect(this._onChange, this);
  }

  override dispose(): void {
    this._stop();
    super.dispose();
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._begin();
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._begin();
  }

  protected override onBeforeHide(msg: Message): void {
    super.onBeforeHide(msg);
    this._stop();
  }

  protected override onBeforeDetach(msg: Message): void {
    this._stop();
    super.onBeforeDetach(msg);
  }

  protected override render(): JSX.Element {
    const { client, trans } = this;
    return (
      <Boundary trans={trans}>
        <Panel
          fleet={client.watch.fleet}
          link={client.watch.link}
          status={client.status}
          now={client.watch.now()}
          trans={trans}
          actions={this._actions}
        />
      </Boundary>
    );
  }

  private _begin(): void {
    if (this.isVisible && !this._looking) {
      this._looking = this.client.watch.look();
      this._ticking = setInterval(() => this._onChange(), TICK_MS);
      void this.client.askStatus();
      this.update();
    }
  }

  private _stop(): void {
    this._looking?.dispose();
    this._looking = null;
    if (this._ticking !== null) {
      clearInterval(this._ticking);
      this._ticking = null;
    }
  }

  private _onChange(): void {
    if (this._looking) {
      this.update();
    }
  }
}
