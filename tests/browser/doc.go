// Package browser opens the page of the real programs in a real Chromium, with a host that
// calls itself by markup.
package browser
