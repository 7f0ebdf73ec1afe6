// Package docs holds the tests that generate pages of docs/ and fail when one is stale.
package docs
