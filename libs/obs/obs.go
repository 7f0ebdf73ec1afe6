// Package obs sets up what people see of a process: structured logs on standard error.
package obs
