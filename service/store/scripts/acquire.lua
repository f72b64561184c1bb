#!lua flags=allow-oom
-- Take the lease of a partition if nobody holds it, and say where to go on.
-- KEYS: lease, meta, log
-- ARGV: token, lease ms, '1' when this acquisition counts as an attempt, format of the store,
--       failures that set a command aside, ms that they last at least where none is certain
-- Answers false when held, {format} when that of the partition is another,
-- {-1} when the offset is damaged beyond repair, else {epoch, offset, earlier attempts, 1 if the
-- log was rolled back, earlier trials of the next command alone, 1 if it is to be set aside}.
local lease, meta, log = KEYS[1], KEYS[2], KEYS[3]
if redis.call('EXISTS', lease) == 1 then
  return false
end

local function parts(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function last_id()
  if redis.call('EXISTS', log) == 0 then
    return '0-0'
  end
  local info = redis.call('XINFO', 'STREAM', log)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return info[i + 1]
    end
  end
end

-- A number that is none is damaged: it counts as 0.
local function number(text) return tonumber(text or '0') or 0 end

-- Of the offset there is a copy with a checksum; one that is right is right about the offset.
local function intact(copy)
  local text, check = string.match(copy or '', '^(%S+) (%x+)$')
  return text and redis.sha1hex(text):sub(1, 8) == check and text
end

local fields = redis.call('HMGET', meta, 'offset', 'attempts', 'attempt_offset', 'in', 'done',
  'format', 'offset_copy', 'epoch', 'trying', 'tries')
if fields[6] and fields[6] ~= ARGV[4] then
  return {fields[6]}
end
local offset = intact(fields[7]) or fields[1] or '0-0:-1'
local entry, index = string.match(offset, '^(%d+%-%d+):(%-?%d+)$')
if not entry then
  return {-1}
end
local appended, done = number(fields[4]), number(fields[5])

-- A log that was rolled back (failover, lost file) would give new entries ids below the offset,
-- where nobody would ever read them: move its clock up to the offset.
local rolled_back = 0
local last = last_id()
local last_ms, last_seq = parts(last)
local ms, seq = parts(entry)
if ms > last_ms or (ms == last_ms and seq > last_seq) then
  rolled_back = 1
  if redis.call('EXISTS', log) == 1 then
    redis.call('XSETID', log, entry)
  else
    redis.call('XADD', log, entry, 'b', '')
    redis.call('XTRIM', log, 'MAXLEN', '=', 0)
  end
end

-- index -1: the whole entry is applied, so what waits comes after it.
local from = index == '-1' and '(' .. entry or entry
local first = redis.call('XRANGE', log, from, '+', 'COUNT', 1)[1]
local waiting = first ~= nil

-- What is left of trials (see trial.lua) of the command that comes next. A failure is certain
-- where the worker lived to report it, or its supervisor saw what it died of. A worker that did
-- not come back may as well have been killed by others: such ends count once they go on for long.
local function judge(tries)
  local now = redis.call('TIME')
  local oldest = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
  local long_ago = oldest - tonumber(ARGV[6])
  local all, certain = 0, 0
  for _, began in pairs(tries) do
    all = all + 1
    if began == 0 then
      certain = certain + 1
    else
      oldest = math.min(oldest, began)
    end
  end
  local limit = tonumber(ARGV[5])
  local guilty = certain >= limit or (all >= limit and oldest <= long_ago)
  return all, guilty and 1 or 0
end

local tried, guilty = 0, 0
if waiting then
  local next_index = first[1] == entry and tonumber(index) + 1 or 0
  if fields[9] == first[1] .. ':' .. next_index then
    local readable, tries = pcall(cjson.decode, fields[10]) -- damaged ones count for nothing
    if readable then tried, guilty = judge(tries) end
  end
end

local earlier, attempts = 0, 0
if waiting then
  if fields[3] == offset then
    earlier = number(fields[2])
  end
  attempts = ARGV[3] == '1' and earlier + 1 or earlier
elseif appended ~= done then
  -- Nothing waits, whatever the counters say: a drift would refuse appends for ever.
  local most = string.format('%.0f', math.max(appended, done))
  redis.call('HSET', meta, 'in', most, 'done', most)
end

local epoch = number(fields[8]) + 1
redis.call('HSET', meta, 'offset', offset, 'attempts', attempts, 'attempt_offset', offset,
  'format', ARGV[4], 'epoch', epoch,
  'offset_copy', offset .. ' ' .. redis.sha1hex(offset):sub(1, 8))
redis.call('SET', lease, ARGV[1], 'PX', ARGV[2])
return {epoch, offset, earlier, rolled_back, tried, guilty}
