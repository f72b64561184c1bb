#!lua
-- For each of several partitions: append one batch to its log, once per (incarnation, batch number).
-- No allow-oom flag: when memory is full the server refuses new work before it is accepted.
-- KEYS, of each partition: append (last batch number of this API process, with its entry), meta, log
-- ARGV: bound on observations waiting, ms to remember; then of each partition: batch number,
--       observations in it, payload, checksums of the payload, '1' where it may have been appended
--       before
-- Answers for each partition {entry id or false when full, observations waiting}, or an error;
-- {false, -1} where it is not known whether it was appended. A refusal of what may have been sent
-- before is remembered, as entry '-': an earlier try that the store comes to later is refused as well.
local bound = tonumber(ARGV[1])
local function check_of(text) return redis.sha1hex(text):sub(1, 8) end

local function append_to(append, meta, log, batch, observations, payload, sums, repeated)
  local number, count = tonumber(batch), tonumber(observations)

  -- Counters that are none would be an error after the first write: they count nothing.
  local counts = redis.call('HMGET', meta, 'in', 'done')
  local done = tonumber(counts[2] or '0') or tonumber(counts[1] or '0') or 0
  local appended = tonumber(counts[1] or '0') or done
  local waiting = appended - done

  local seen = redis.call('GET', append)
  if seen then
    local text, last, entry, check = string.match(seen, '^((%d+) (%S+)) (%x+)$')
    -- One that says that this batch comes next, as most do, is checked only where it may be a
    -- repeat.
    local fresh = text and tonumber(last) < number and repeated ~= '1'
    if not fresh and (not text or check_of(text) ~= check) then
      if repeated == '1' then
        return {false, -1}
      end
    elseif tonumber(last) == number then
      return {entry ~= '-' and entry, waiting}
    elseif tonumber(last) > number then
      return redis.error_reply('MOCA batch ' .. batch .. ' came after batch ' .. last)
    end
  end

  local function remember(entry)
    local text = batch .. ' ' .. entry
    redis.call('SET', append, text .. ' ' .. check_of(text), 'PX', ARGV[2])
  end

  if waiting + count > bound then
    if repeated == '1' then remember('-') end
    return {false, waiting}
  end

  local entry = redis.call('XADD', log, '*', 'b', payload, 'c', sums)
  redis.call('HSET', meta, 'in', string.format('%.0f', appended + count))
  remember(entry)
  return {entry, waiting + count}
end

local answers = {}
for i = 1, #KEYS / 3 do
  local at = 5 * i - 2
  local ok, answer = pcall(append_to, KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i],
    ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  -- An error of one partition's keys is none of the others.
  answers[i] = (ok or type(answer) == 'table') and answer or redis.error_reply(tostring(answer))
end
return answers
