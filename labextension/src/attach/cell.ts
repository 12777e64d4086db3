import type { CodeCell, ICodeCellModel } from '@jupyterlab/cells';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';
import type { PanelLayout } from '@lumino/widgets';

import type { IJob } from '../api/types';
import { Follow } from '../job/follow';
import { ModelOutputs } from '../replay/model';
import type { IGpulayer } from '../tokens';
import type { IBar } from './bar';
import { CellBar } from './bar';
import type { Offer } from './offer';

/** JupyterLab's own mark of the part of a cell that holds its output. */
const OUTPUT = 'jp-Cell-outputWrapper';

/** One cell that has a job: what is offered there, and once attached, the job's output into it. */
export class CellAttachment implements IDisposable {
  private _bar: CellBar | null = null;
  private _follow: Follow | null = null;
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);

  constructor(
    private readonly cell: CodeCell,
    private readonly client: IGpulayer,
    private readonly trans: TranslationBundle,
    private readonly dismiss: (job: string) => void
  ) {}

  /** Whether a job's output comes into the cell. */
  get attached(): boolean {
    return this._follow !== null;
  }

  /** It was attached, or is no longer: what is offered may be another. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** What is to be offered now; null: nothing. An attached cell stays so. */
  offer(job: IJob, offer: Offer | null): void {
    if (this.attached) {
      return;
    }
    if (offer === null) {
      this._hide();
    } else {
      this._show({ job, mode: offer });
    }
  }

  /** Put all of the job's output into the cell, and go on while it runs. */
  attach(): void {
    const job = this._bar?.bar.job;
    if (!job || this.attached) {
      return;
    }
    const model: ICodeCellModel = this.cell.model;
    const outputs = new ModelOutputs(model.outputs, () => {
      // as when a cell is run, and not before what stood there is gone: what comes is of the person's own code
      model.trusted = true;
    });
    const follow = (this._follow = new Follow({
      open: this.client.events(job.id),
      outputs,
      statusLine: true,
      job,
      now: () => this.client.watch.now(),
      disturbed: () => this.cell.isDisposed || outputs.disturbed
    }));
    const show = (): void => {
      if (follow.state === 'unknown') {
        this.detach();
      } else {
        this._show({ job: follow.job ?? job, mode: 'attached', link: follow.state });
      }
    };
    follow.changed.connect(show);
    follow.ended.connect(() => this.detach());
    show();
    follow.start();
    this._changed.emit();
  }

  /** Show it here no longer; the job goes on. */
  detach(): void {
    if (this._follow) {
      this._follow.dispose();
      this._follow = null;
      this._hide();
      this._changed.emit();
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._follow?.dispose();
      this._follow = null;
      this._hide();
      Signal.clearData(this);
    }
  }

  private _show(bar: IBar): void {
    if (this._bar) {
      this._bar.bar = bar;
      return;
    }
    this._bar = new CellBar(
      bar,
      {
        attach: () => this.attach(),
        detach: () => this.detach(),
        dismiss: () => this.dismiss(this._bar?.bar.job.id ?? '')
      },
      this.trans
    );
    const layout = this.cell.layout as PanelLayout;
    const output = layout.widgets.findIndex(widget => widget.hasClass(OUTPUT));
    layout.insertWidget(output < 0 ? layout.widgets.length : output, this._bar);
  }

  private _hide(): void {
    this._bar?.dispose();
    this._bar = null;
  }
}
