import { InputDialog, Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';

import type { IJob } from './api/types';
import { isTerminal } from './api/types';
import type { IFleet } from './api/watch';
import { showAddMachine } from './machine/dialog';
import type { IGpulayer } from './tokens';
import { Commands } from './tokens';

/** Says that a command takes no arguments. */
export const noArguments = { args: { type: 'object', properties: {} } as ReadonlyJSONObject };

/** Says that a command takes one argument; where it is not given, the person is asked. */
export function oneArgument(name: string, description: string): { args: ReadonlyJSONObject } {
  return { args: { type: 'object', properties: { [name]: { type: 'string', description } } } };
}

/** The commands that need no widget. Each says in a notification why it could not be done. */
export function addCommands(
  commands: CommandRegistry,
  client: IGpulayer,
  trans: TranslationBundle
): void {
  commands.addCommand(Commands.addMachine, {
    label: trans.__('Add a Machine…'),
    execute: () => attempt(showAddMachine(client, trans)),
    describedBy: noArguments
  });
  commands.addCommand(Commands.refresh, {
    label: trans.__('Connect Anew'),
    execute: () => {
      client.watch.refresh();
      return client.askStatus();
    },
    describedBy: noArguments
  });
  commands.addCommand(Commands.cancelJob, {
    label: trans.__('Cancel a Job'),
    execute: async args => {
      const live = (job: IJob): boolean => !isTerminal(job);
      const job =
        given(args['job']) ?? (await pickJob(client, trans.__('Cancel which job?'), trans, live));
      return job && attempt(client.cancel(job));
    },
    describedBy: oneArgument('job', trans.__('The id of the job'))
  });
  commands.addCommand(Commands.releaseSession, {
    label: trans.__('Release a Session'),
    execute: async args => {
      const session =
        given(args['session']) ??
        (await pickSession(client, trans.__('Release which session?'), trans));
      return session && attempt(client.release(session));
    },
    describedBy: oneArgument('session', trans.__('The name of the session'))
  });
}

/** A command's argument, if it was given. */
export function given(value: unknown): string | null {
  return typeof value === 'string' && value ? value : null;
}

/** Ask which of the jobs; '' where none was chosen. */
export async function pickJob(
  client: IGpulayer,
  title: string,
  trans: TranslationBundle,
  wanted: (job: IJob) => boolean = () => true
): Promise<string> {
  const { jobs } = await fleetOf(client);
  const items = jobs.filter(wanted).map(job => `${job.id} ${job.name}`.trim());
  return (await pick(title, items, trans)).split(' ')[0] ?? '';
}

async function pickSession(
  client: IGpulayer,
  title: string,
  trans: TranslationBundle
): Promise<string> {
  const { sessions } = await fleetOf(client);
  return pick(
    title,
    sessions.map(session => session.name),
    trans
  );
}

/** '' where there is none, or none was chosen. */
async function pick(title: string, items: string[], trans: TranslationBundle): Promise<string> {
  if (items.length === 0) {
    Notification.info(trans.__('There is none.'));
    return '';
  }
  return (await InputDialog.getItem({ title, items })).value ?? '';
}

/** The fleet as it is now, also where nobody looked so far. */
async function fleetOf(client: IGpulayer): Promise<IFleet> {
  const looking = client.watch.look();
  try {
    await client.watch.settled();
    return client.watch.fleet;
  } finally {
    looking.dispose();
  }
}

/** Do it; if it is refused, say why. */
async function attempt(what: Promise<unknown>): Promise<void> {
  try {
    await what;
  } catch (error) {
    Notification.error(`GPUlayer: ${error instanceof Error ? error.message : String(error)}`);
  }
}
