/** The version of the Python package that this page's code came with; a test holds it to `gpulayer/_version.py`. */
export const VERSION = '0.1.0.dev0';
