#!lua
-- Append one batch to the log, once per (incarnation, batch number).
-- No allow-oom flag: when memory is full the server refuses new work before it is accepted.
-- KEYS: append (last batch number of this API process, with its entry), meta, log
-- ARGV: batch number, observations in it, bound on observations waiting, payload, ms to remember
-- Answers {entry id or false when full, observations waiting}.
local append, meta, log = KEYS[1], KEYS[2], KEYS[3]
local number, count, bound = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local counts = redis.call('HMGET', meta, 'in', 'done')
local waiting = tonumber(counts[1] or '0') - tonumber(counts[2] or '0')

local seen = redis.call('GET', append)
if seen then
  local last, entry = string.match(seen, '^(%d+) (%S+)$')
  last = tonumber(last)
  if last == number then
    return {entry, waiting}
  end
  if last > number then
    return redis.error_reply('MOCA batch ' .. ARGV[1] .. ' came after batch ' .. last)
  end
end

if waiting + count > bound then
  return {false, waiting}
end

local entry = redis.call('XADD', log, '*', 'b', ARGV[4])
redis.call('HINCRBY', meta, 'in', count)
redis.call('SET', append, ARGV[1] .. ' ' .. entry, 'PX', ARGV[5])
return {entry, waiting + count}
