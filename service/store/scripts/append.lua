#!lua
-- Append one batch to the log, once per (incarnation, batch number).
-- No allow-oom flag: when memory is full the server refuses new work before it is accepted.
-- KEYS: append (last batch number of this API process, with its entry), meta, log
-- ARGV: batch number, observations in it, bound on observations waiting, payload, ms to remember,
--       checksums of the payload, '1' where it may have been appended before
-- Answers {entry id or false when full, observations waiting}; {false, -1} where it is not known
-- whether it was appended. A refusal of what may have been sent before is remembered, as entry '-':
-- an earlier try that the store comes to later is refused as well.
local append, meta, log = KEYS[1], KEYS[2], KEYS[3]
local number, count, bound = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

-- Counters that are none would be an error after the first write: they count nothing.
local counts = redis.call('HMGET', meta, 'in', 'done')
local done = tonumber(counts[2] or '0') or tonumber(counts[1] or '0') or 0
local appended = tonumber(counts[1] or '0') or done
local waiting = appended - done

local function check_of(text) return redis.sha1hex(text):sub(1, 8) end
local seen = redis.call('GET', append)
if seen then
  local text, last, entry, check = string.match(seen, '^((%d+) (%S+)) (%x+)$')
  -- One that says that this batch comes next, as most do, is checked only where it may be a repeat.
  local fresh = text and tonumber(last) < number and ARGV[7] ~= '1'
  if not fresh and (not text or check_of(text) ~= check) then
    if ARGV[7] == '1' then
      return {false, -1}
    end
  elseif tonumber(last) == number then
    return {entry ~= '-' and entry, waiting}
  elseif tonumber(last) > number then
    return redis.error_reply('MOCA batch ' .. ARGV[1] .. ' came after batch ' .. last)
  end
end

local function remember(entry)
  local text = ARGV[1] .. ' ' .. entry
  redis.call('SET', append, text .. ' ' .. check_of(text), 'PX', ARGV[5])
end

if waiting + count > bound then
  if ARGV[7] == '1' then remember('-') end
  return {false, waiting}
end

local entry = redis.call('XADD', log, '*', 'b', ARGV[4], 'c', ARGV[6])
redis.call('HSET', meta, 'in', string.format('%.0f', appended + count))
remember(entry)
return {entry, waiting + count}
