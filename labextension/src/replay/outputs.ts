import type { IDisplayData, IError, IExecuteResult, IOutput, IStream } from '@jupyterlab/nbformat';

/** Where a replay writes: the outputs of a cell, or of a job's own view. */
export interface IOutputs {
  /** Remove all of them. */
  clear(): void;
  /** Append one. */
  add(output: IOutput): void;
  /** Put another in its place. */
  set(index: number, output: IOutput): void;
  /** Cut the text of a stream to `keep` characters, then append `text`. */
  edit(index: number, keep: number, text: string): void;
}

type Content = Record<string, unknown>;
type Bundle = Record<string, unknown>;

/** A widget's view shows nothing without the widget's own kernel: its text does, where it has one. */
const WIDGET = 'application/vnd.jupyter.widget-view+json';

function shown(content: Content): Bundle {
  const data = { ...(content['data'] as Bundle | undefined) };
  if (WIDGET in data && Object.keys(data).length > 1) {
    delete data[WIDGET];
  }
  return data;
}

/** A display, as a notebook's file holds it. */
export function displayData(content: Content): IDisplayData {
  return {
    output_type: 'display_data',
    data: shown(content),
    metadata: (content['metadata'] as Bundle | undefined) ?? {}
  } as unknown as IDisplayData;
}

/** A display of one line of text. */
export function textDisplay(text: string): IDisplayData {
  return displayData({ data: { 'text/plain': text } });
}

/** The value of a cell's last line. */
export function executeResult(content: Content): IExecuteResult {
  return {
    ...displayData(content),
    output_type: 'execute_result',
    execution_count: (content['execution_count'] as number | undefined) ?? null
  } as unknown as IExecuteResult;
}

/** A stream without text. */
export function stream(name: 'stdout' | 'stderr'): IStream {
  return { output_type: 'stream', name, text: '' };
}

/** An exception. */
export function errorOutput(ename: string, evalue: string, traceback: string[]): IError {
  return { output_type: 'error', ename, evalue, traceback };
}

/** Outputs in a list: what a notebook's file would hold. */
export class OutputList implements IOutputs {
  readonly list: IOutput[] = [];

  clear(): void {
    this.list.length = 0;
  }

  add(output: IOutput): void {
    this.list.push({ ...output });
  }

  set(index: number, output: IOutput): void {
    this.list[index] = { ...output };
  }

  edit(index: number, keep: number, text: string): void {
    const output = this.list[index] as IStream;
    output.text = (output.text as string).slice(0, keep) + text;
  }
}
