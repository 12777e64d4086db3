import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';

import { noArguments } from '../commands';
import { Commands, IGpulayer } from '../tokens';
import type { CellAttachment } from './cell';
import { NotebookAttachments } from './notebook';

/** JupyterLab's command behind the Stop button. */
const INTERRUPT = 'notebook:interrupt-kernel';

/** Offers, at the cell, the output of a job that the page has missed. */
export const attachPlugin: JupyterFrontEndPlugin<void> = {
  id: 'gpulayer:attach',
  description: 'Offers at a cell the output of its job that a reload or a restart has cut off.',
  autoStart: true,
  requires: [IGpulayer, ITranslator],
  optional: [INotebookTracker, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    client: IGpulayer,
    translator: ITranslator,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null
  ) => {
    if (!tracker) {
      return; // a page without notebooks
    }
    const trans = translator.load('gpulayer');
    const open = new Map<NotebookPanel, NotebookAttachments>();
    const follow = (panel: NotebookPanel): void => {
      void Promise.all([panel.context.ready, panel.revealed]).then(() => {
        if (!panel.isDisposed && !open.has(panel)) {
          open.set(panel, new NotebookAttachments(panel, client, trans));
          panel.disposed.connect(() => open.delete(panel));
        }
      });
    };
    tracker.forEach(follow);
    tracker.widgetAdded.connect((_, panel) => follow(panel));
    app.commands.commandExecuted.connect((_, { id }) => {
      if (id === INTERRUPT && tracker.currentWidget) {
        open.get(tracker.currentWidget)?.onStop();
      }
    });

    const active = (): CellAttachment | undefined => {
      const panel = tracker.currentWidget;
      const cell = tracker.activeCell;
      return panel && cell ? open.get(panel)?.at(cell.model.id) : undefined;
    };
    app.commands.addCommand(Commands.attachCell, {
      label: trans.__("Attach the Cell to Its Job's Output"),
      isEnabled: () => active()?.attached === false,
      execute: () => active()?.attach(),
      describedBy: noArguments
    });
    app.commands.addCommand(Commands.detachCell, {
      label: trans.__("Detach the Cell from Its Job's Output"),
      isEnabled: () => active()?.attached === true,
      execute: () => active()?.detach(),
      describedBy: noArguments
    });
    for (const command of [Commands.attachCell, Commands.detachCell]) {
      palette?.addItem({ command, category: 'GPUlayer' });
    }
  }
};
