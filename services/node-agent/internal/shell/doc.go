// Package shell performs what reconcile decides: it reads assignments, looks at processes and files, starts and ends
// runs through their shims, and says what happened. Each loop is a run.Shell of its own, so that a slow bus or a large
// bundle never delays a stop.
//
//	Core       assignments and files → reconcile → actions; the only one that starts and ends processes
//	Preparer   fetches what a launch needs
//	Reports    the outbox of reports, in order
//	Beat       signs of life, and when contact was last had
//	Logs, Saves, Health   output, finished saves, device events → bus
//	Janitor    removes files of forgotten runs
package shell
