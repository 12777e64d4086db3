import type { CodeCell } from '@jupyterlab/cells';
import { PageConfig } from '@jupyterlab/coreutils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { NotebookActions } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import type { IJob } from '../api/types';
import type { IGpulayer } from '../tokens';
import { CellAttachment } from './cell';
import type { ICellFacts } from './offer';
import { newestByCell, offerOf, samePath } from './offer';

/** States of a kernel in which what it ran is lost to this page. */
const LOST = new Set(['restarting', 'autorestarting', 'dead', 'terminating']);

/** An execution by this page. */
interface IRun {
  /** When, in milliseconds of this page's clock. */
  at: number;
  /** How often the kernel had been restarted by then. */
  kernel: number;
}

/** One open notebook: finds the jobs of its cells whose output this page does not show, and offers it there. */
export class NotebookAttachments implements IDisposable {
  private readonly _cells = new Map<string, CellAttachment>();
  private readonly _runs = new Map<string, IRun>();
  private readonly _dismissed = new Set<string>();
  private readonly _looking: IDisposable;
  private readonly _savedAt: number | null;
  private _kernel = 0; // how often it was restarted, or another one taken, since the page was loaded
  private _due = false;
  private _isDisposed = false;

  constructor(
    private readonly panel: NotebookPanel,
    private readonly client: IGpulayer,
    private readonly trans: TranslationBundle
  ) {
    const saved = panel.context.contentsModel?.last_modified;
    this._savedAt = saved ? new Date(saved).getTime() / 1000 : null;
    this._looking = client.watch.look();
    client.watch.changed.connect(this.update, this);
    NotebookActions.executionScheduled.connect(this._onScheduled, this);
    NotebookActions.executed.connect(this.update, this);
    NotebookActions.outputCleared.connect(this.update, this);
    panel.content.model?.cells.changed.connect(this.update, this);
    panel.content.activeCellChanged.connect(this.update, this);
    panel.sessionContext.statusChanged.connect(this._onStatus, this);
    panel.sessionContext.kernelChanged.connect(this._onKernel, this);
    panel.disposed.connect(this.dispose, this);
    this.update();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** What is attached or offered at a cell. */
  at(cell: string): CellAttachment | undefined {
    return this._cells.get(cell);
  }

  /**
   * The person pressed Stop. It detaches what is attached, unless the kernel may be running that very cell: of a
   * kernel that was at work when the page was loaded nothing else is known. Then Stop is the kernel's, which cancels
   * the job, and the cell shows how it ends.
   */
  onStop(): void {
    const status = this.panel.sessionContext.session?.kernel?.status;
    if (status !== 'busy' && (status === 'idle' || this._kernel > 0)) {
      this._cells.forEach(cell => cell.detach());
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._looking.dispose();
    this._cells.forEach(cell => cell.dispose());
    this._cells.clear();
    Signal.clearData(this);
  }

  /** Look again, soon. */
  update(): void {
    if (!this._due && !this._isDisposed) {
      this._due = true;
      queueMicrotask(() => {
        this._due = false;
        if (!this._isDisposed) {
          this._update();
        }
      });
    }
  }

  private _update(): void {
    const jobs = newestByCell(this.client.watch.fleet.jobs, this._isThis);
    const widgets = new Map(this.panel.content.widgets.map(cell => [cell.model.id, cell]));
    for (const [id, attachment] of this._cells) {
      if (!widgets.has(id)) {
        attachment.dispose();
        this._cells.delete(id);
      }
    }
    for (const [id, job] of jobs) {
      const cell = widgets.get(id);
      if (cell?.model.type === 'code') {
        this._offer(cell as CodeCell, job);
      }
    }
  }

  private readonly _isThis = (path: string): boolean =>
    samePath(path, PageConfig.getOption('serverRoot'), this.panel.context.path);

  private _offer(cell: CodeCell, job: IJob): void {
    if (cell.isPlaceholder()) {
      void cell.ready.then(() => this.update());
      return;
    }
    const id = cell.model.id;
    const offer = this._dismissed.has(job.id) ? null : offerOf(job, this._facts(cell));
    let attachment = this._cells.get(id);
    if (!attachment && offer) {
      attachment = new CellAttachment(cell, this.client, this.trans, job => {
        this._dismissed.add(job);
        this.update();
      });
      attachment.changed.connect(this.update, this);
      this._cells.set(id, attachment);
    }
    attachment?.offer(job, offer);
  }

  private _facts(cell: CodeCell): ICellFacts {
    const { outputs, executionState } = cell.model;
    const run = this._runs.get(cell.model.id);
    const displays: string[] = [];
    for (let index = 0; index < outputs.length; index++) {
      const text = outputs.get(index).data['text/plain'];
      if (outputs.get(index).type === 'display_data' && typeof text === 'string') {
        displays.push(text);
      }
    }
    return {
      executing: executionState === 'running',
      executedAt:
        run && run.kernel === this._kernel
          ? run.at / 1000 + this.client.watch.now() - Date.now() / 1000
          : null,
      displays,
      empty: outputs.length === 0,
      savedAt: this._savedAt
    };
  }

  private _onScheduled(_: unknown, args: { cell: { model: { id: string } } }): void {
    const id = args.cell.model.id;
    if (this.panel.content.widgets.some(cell => cell === args.cell)) {
      this._runs.set(id, { at: Date.now(), kernel: this._kernel });
      this._cells.get(id)?.detach(); // its output belongs to the new run
      this.update();
    }
  }

  private _onStatus(_: unknown, status: string): void {
    if (LOST.has(status)) {
      this._kernel += 1;
    }
    this.update();
  }

  private _onKernel(_: unknown, change: { oldValue: unknown }): void {
    if (change.oldValue) {
      this._kernel += 1;
    }
    this.update();
  }
}
