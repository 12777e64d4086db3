import { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';

import type { IGpulayer } from '../tokens';
import { AddMachine } from './add';

/** Show how a machine joins; whoever is looked for may arrive while it is open. */
export async function showAddMachine(client: IGpulayer, trans: TranslationBundle): Promise<void> {
  const body = ReactWidget.create(<AddMachine client={client} trans={trans} />);
  body.addClass('gpulayer-AddMachine-body');
  await new Dialog({
    title: trans.__('Add a machine'),
    body,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  }).launch();
}
