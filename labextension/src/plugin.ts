import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ILabShell, ILayoutRestorer } from '@jupyterlab/application';
import { ICommandPalette, WidgetTracker } from '@jupyterlab/apputils';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator } from '@jupyterlab/translation';

import { Client } from './api/client';
import { addCommands, given, noArguments, oneArgument, pickJob } from './commands';
import { gpulayerIcon } from './icon';
import { JobView } from './job/view';
import { PANEL_ID, PanelWidget } from './panel/widget';
import { Commands, IGpulayer } from './tokens';

const PALETTE = 'GPUlayer';

/** Access to the control plane, shared by the parts of this extension and open to others. */
export const clientPlugin: JupyterFrontEndPlugin<IGpulayer> = {
  id: 'gpulayer:client',
  description: 'Access to the machines, jobs and sessions of GPUlayer.',
  autoStart: true,
  provides: IGpulayer,
  activate: (app: JupyterFrontEnd) => new Client(app.serviceManager.serverSettings)
};

/** The panel in the left sidebar, and its commands. */
export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'gpulayer:panel',
  description: 'The panel: machines, jobs and sessions.',
  autoStart: true,
  requires: [IGpulayer, ITranslator],
  optional: [ICommandPalette, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    client: IGpulayer,
    translator: ITranslator,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null
  ) => {
    const { commands, shell } = app;
    const trans = translator.load('gpulayer');
    const panel = new PanelWidget(client, commands, trans);
    shell.add(panel, 'left', { rank: 550, type: 'GPUlayer' });
    restorer?.add(panel, PANEL_ID);

    commands.addCommand(Commands.openPanel, {
      label: trans.__('Show Machines and Jobs'),
      icon: gpulayerIcon,
      execute: () => shell.activateById(PANEL_ID),
      describedBy: noArguments
    });
    addCommands(commands, client, trans);
    const { openPanel, addMachine, refresh, cancelJob, releaseSession } = Commands;
    for (const command of [openPanel, addMachine, refresh, cancelJob, releaseSession]) {
      palette?.addItem({ command, category: PALETTE });
    }
  }
};

/** A job's output in the main area. */
export const jobPlugin: JupyterFrontEndPlugin<void> = {
  id: 'gpulayer:job',
  description: "A job's output, live.",
  autoStart: true,
  requires: [IGpulayer, IRenderMimeRegistry, ITranslator],
  optional: [ICommandPalette, ILayoutRestorer, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    client: IGpulayer,
    rendermime: IRenderMimeRegistry,
    translator: ITranslator,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    labShell: ILabShell | null
  ) => {
    const { commands, shell } = app;
    const trans = translator.load('gpulayer');
    const tracker = new WidgetTracker<JobView>({ namespace: 'gpulayer-job' });
    commands.addCommand(Commands.openJob, {
      label: trans.__('Open the Output of a Job'),
      execute: async args => {
        const job =
          given(args['job']) ??
          (await pickJob(client, trans.__('The output of which job?'), trans));
        if (!job) {
          return;
        }
        let view = tracker.find(open => open.job === job);
        if (!view) {
          view = new JobView({ job, client, commands, rendermime, trans });
          void tracker.add(view);
          // without JupyterLab's shell the main area holds one document: there it opens beside it
          shell.add(view, labShell ? 'main' : 'right');
        }
        shell.activateById(view.id);
        return view;
      },
      describedBy: oneArgument('job', trans.__('The id of the job'))
    });
    palette?.addItem({ command: Commands.openJob, category: PALETTE });
    if (restorer) {
      void restorer.restore(tracker, {
        command: Commands.openJob,
        args: view => ({ job: view.job }),
        name: view => view.job
      });
    }
  }
};
