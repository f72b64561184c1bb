#!lua flags=no-writes
-- Age of the oldest entry that waits in a log, in ms, by the server's clock; 0: none waits.
-- A commit trims what is applied whole, so the first entry is one that waits, if only in part.
-- KEYS: log
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not first then
  return 0
end
local now = redis.call('TIME')
local ms = math.floor(tonumber(now[1]) * 1000 + tonumber(now[2]) / 1000)
return math.max(0, ms - tonumber(string.match(first[1], '^%d+')))
