import type { IOutput } from '@jupyterlab/nbformat';
import type { IOutputAreaModel } from '@jupyterlab/outputarea';

import type { IOutputs } from './outputs';

/** The outputs of a cell, or of an output area. What is written there is in the notebook's file when it is saved. */
export class ModelOutputs implements IOutputs {
  private _count: number;

  /** @param onClear - called when the outputs were emptied. */
  constructor(
    private readonly model: IOutputAreaModel,
    private readonly onClear: () => void = () => undefined
  ) {
    this._count = model.length;
  }

  /** Whether somebody else wrote there, such as a person who cleared the outputs. */
  get disturbed(): boolean {
    return this.model.isDisposed || this.model.length !== this._count;
  }

  clear(): void {
    this.model.clear();
    this._count = 0;
    this.onClear();
  }

  add(output: IOutput): void {
    this.model.add(output);
    this._count += 1;
  }

  set(index: number, output: IOutput): void {
    this.model.set(index, output);
  }

  /** By the stream's own text: `model.add` would go through all of it each time. */
  edit(index: number, keep: number, text: string): void {
    const shown = this.model.get(index).streamText;
    if (!shown) {
      throw new Error(`output ${index} is no stream`);
    }
    if (keep < shown.text.length) {
      shown.remove(keep, shown.text.length);
    }
    if (text) {
      shown.insert(shown.text.length, text);
    }
  }
}
