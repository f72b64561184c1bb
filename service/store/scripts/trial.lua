#!lua flags=allow-oom
-- Name the command that a worker is about to apply alone. The name goes with the commit, and with
-- a release unless the command failed; acquire.lua judges by what stays.
-- KEYS: lease, meta   ARGV: token, place of the command (entry:index)
-- Answers 1, or 0 when the lease is not ours any more.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local found = redis.call('HMGET', KEYS[2], 'trying', 'tries')
-- When each trial of this command began, by the token of its worker, in ms; 0: it failed.
local readable, tries = pcall(cjson.decode, found[1] == ARGV[2] and found[2] or '{}')
if not readable then tries = {} end -- damaged: they count for nothing
local now = redis.call('TIME')
tries[ARGV[1]] = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
redis.call('HSET', KEYS[2], 'trying', ARGV[2], 'tries', cjson.encode(tries))
return 1
