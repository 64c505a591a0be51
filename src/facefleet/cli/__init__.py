"""The command line: the only place for print, arguments and exit codes. One module a command."""
