import { MainAreaWidget } from '@jupyterlab/apputils';
import { OutputAreaModel, SimplifiedOutputArea } from '@jupyterlab/outputarea';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import { Panel } from '@lumino/widgets';
import React from 'react';

import { gpulayerIcon } from '../icon';
import { Boundary } from '../panel/boundary';
import { ModelOutputs } from '../replay/model';
import type { IGpulayer } from '../tokens';
import { Commands } from '../tokens';
import { symbol } from '../words';
import { Follow } from './follow';
import { JobHeader } from './header';

/** What a job's view needs. */
export interface IJobViewOptions {
  job: string;
  client: IGpulayer;
  commands: CommandRegistry;
  rendermime: IRenderMimeRegistry;
  trans: TranslationBundle;
}

/** A page lays out a long text again and again while it grows; one in pieces only its last piece. */
const CHUNK_CHARS = 16 * 1024;

/** Outputs of which neighbours stay apart, though they are of one stream. */
class PiecesModel extends OutputAreaModel {
  protected override shouldCombine(): boolean {
    return false;
  }
}

/** So near to the end, in pixels, the newest output stays in view. */
const NEAR_PX = 24;

/** A job's output, live, with its header line. */
export class JobView extends MainAreaWidget<Panel> {
  /** The job's id. */
  readonly job: string;
  private readonly _follow: Follow;
  private readonly _head: JobHead;
  private readonly _scroller: Panel;
  private readonly _sizes = new ResizeObserver(() => this._keepUp());
  private _top = 0;

  constructor(options: IJobViewOptions) {
    super({ content: new Panel() });
    this.job = options.job;
    this.id = `gpulayer-job-${options.job}`;
    this.addClass('gpulayer-JobView');
    this.node.dataset['job'] = options.job;
    this.toolbar.hide();
    this.title.icon = gpulayerIcon;
    this.title.closable = true;
    this.title.label = options.job;
    const model = new PiecesModel({ trusted: true });
    const area = new SimplifiedOutputArea({ model, rendermime: options.rendermime });
    this._scroller = new Panel();
    this._scroller.addClass('gpulayer-JobView-output');
    this._scroller.node.tabIndex = 0;
    this._scroller.node.setAttribute('role', 'log');
    this._scroller.node.setAttribute('aria-label', options.trans.__('Output of job %1', this.job));
    this._scroller.addWidget(area);
    this._follow = new Follow({
      open: options.client.events(options.job),
      outputs: new ModelOutputs(model),
      chunkChars: CHUNK_CHARS,
      job: options.client.watch.fleet.jobs.find(job => job.id === options.job),
      now: () => options.client.watch.now()
    });
    this._head = new JobHead(this._follow, options, () => this._toEnd());
    this._follow.changed.connect(this._onJob, this);
    this.content.addClass('gpulayer-JobView-content');
    this.content.addWidget(this._head);
    this.content.addWidget(this._scroller);
    area.outputLengthChanged.connect(this._keepUp, this);
    model.changed.connect(this._keepUp, this);
    this._sizes.observe(area.node);
    this._scroller.node.addEventListener('scroll', () => this._onScroll());
    this._onJob();
    this._follow.start();
  }

  override dispose(): void {
    this._follow.dispose();
    this._sizes.disconnect();
    super.dispose();
  }

  private _onJob(): void {
    const job = this._follow.job;
    if (job) {
      this.title.label = `${symbol(job)} ${job.id}${job.name ? ` · ${job.name}` : ''}`;
      this.title.caption = this.title.label;
    }
  }

  private _keepUp(): void {
    if (this._head.following) {
      this._toEnd();
    }
  }

  private _toEnd(): void {
    const node = this._scroller.node;
    node.scrollTop = node.scrollHeight;
  }

  /** Only who scrolls back wants to stay: the end may also go away by itself, under a flood. */
  private _onScroll(): void {
    const { scrollHeight, scrollTop, clientHeight } = this._scroller.node;
    if (scrollHeight - scrollTop - clientHeight <= NEAR_PX) {
      this._head.following = true;
    } else if (scrollTop < this._top) {
      this._head.following = false;
    }
    this._top = scrollTop;
  }
}

class JobHead extends ReactWidget {
  private _following = true;
  private readonly _ticking = setInterval(() => this.update(), 1000);

  constructor(
    private readonly follow: Follow,
    private readonly options: IJobViewOptions,
    private readonly toEnd: () => void
  ) {
    super();
    follow.changed.connect(() => this.update());
    follow.ended.connect(() => this.update());
  }

  /** Whether the newest output stays in view. */
  get following(): boolean {
    return this._following;
  }

  set following(following: boolean) {
    if (following !== this._following) {
      this._following = following;
      this.update();
    }
  }

  override dispose(): void {
    clearInterval(this._ticking);
    super.dispose();
  }

  protected override render(): JSX.Element {
    const { job, client, commands, trans } = this.options;
    return (
      <Boundary trans={trans}>
        <JobHeader
          id={job}
          job={this.follow.job}
          state={this.follow.state}
          following={this._following}
          now={client.watch.now()}
          trans={trans}
          onCancel={() => void commands.execute(Commands.cancelJob, { job })}
          onFollow={this.toEnd}
        />
      </Boundary>
    );
  }
}
